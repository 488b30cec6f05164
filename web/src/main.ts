/** What happens on arrival: the model is loaded, and the example pair is matched. */

import { type Example, Page } from "./page";
import { Session } from "./session";
import { type Model, defaults, fromLink } from "./settings";
import { element } from "./ui/controls";

const SMALL = "(max-width: 620px)";

/** Dark or light as the system says, until a visitor says otherwise. */
function followTheme(): void {
  const dark = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
  const set = (theme: string): void => void (root.dataset.theme = theme);
  set(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => set(dark.matches ? "dark" : "light"));
  element("theme").addEventListener("click", () => set(root.dataset.theme === "dark" ? "light" : "dark"));
}

async function arrive(): Promise<Page> {
  followTheme();
  const [model, examples] = await Promise.all([
    read<Model>("./model/model.json"), read<Example[]>("./examples/examples.json"),
  ]);
  const standard = defaults(model, matchMedia(SMALL).matches), settings = fromLink(location.hash, standard);
  const modelUrl = new URL("./model/compact.onnx", location.href).href;
  const session = new Session(model, modelUrl, settings.backend, (news) => page.loading(news));
  const page = new Page(session, examples, settings, standard);
  await session.ready;
  await page.openExample();
  const { backend, threads } = session.machine!;
  const processor = `on ${threads > 1 ? `${threads} threads` : "one thread"} of your processor (WebAssembly)`;
  const where = backend === "webgpu" ? "on your graphics card (WebGPU)" : processor;
  element("machine").textContent = `${model.name} ${model.version} runs ${where}`;
  return page;
}

async function read<T>(url: string): Promise<T> {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`cannot load ${url}: ${response.status}`);
  return response.json() as Promise<T>;
}

/** For tests and for measuring. */
const arrived = arrive();
Object.assign(window, { steerers: arrived });
arrived.catch((error: Error) => {
  element("waiting").hidden = true;
  element("message").hidden = false;
  element("message").textContent = `The page could not start: ${error.message}`;
});
