/** Calls between the page and its workers: one message there, one back. */

type Handlers = Record<string, (...values: any[]) => unknown>;

/** What a worker answers, seen from the page: the same functions, each of which gives a promise. */
export type Remote<T extends Handlers> = {
  [K in keyof T]: (...values: Parameters<T[K]>) => Promise<Awaited<ReturnType<T[K]>>>;
};

/** Values of a result that are given away, not copied. */
const TRANSFERS = new WeakMap<object, Transferable[]>();

export function transfer<T extends object>(result: T, ...given: Transferable[]): T {
  TRANSFERS.set(result, given);
  return result;
}

/** In a worker: answer calls by these functions. */
export function expose(handlers: Handlers): void {
  self.onmessage = async ({ data: { id, name, values } }: MessageEvent) => {
    try {
      const result = await handlers[name](...values);
      const given = typeof result === "object" && result ? (TRANSFERS.get(result) ?? []) : [];
      self.postMessage({ id, result }, { transfer: given });
    } catch (error) {
      self.postMessage({ id, error: error instanceof Error ? error.message : String(error) });
    }
  };
}

/** In the page: the functions of a worker; `heard` gets what it says unasked. */
export function connect<T extends Handlers>(worker: Worker, heard: (news: any) => void = () => {}): Remote<T> {
  const waiting = new Map<number, { resolve: (value: any) => void; reject: (reason: Error) => void }>();
  let next = 0;
  worker.onmessage = ({ data }) => {
    if (data.news) return heard(data.news);
    const call = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.error === undefined) call?.resolve(data.result);
    else call?.reject(new Error(data.error));
  };
  worker.onerror = (event) => {
    for (const { reject } of waiting.values()) reject(new Error(event.message || "a worker of the page failed"));
    waiting.clear();
  };
  return new Proxy({} as Remote<T>, {
    get: (_, name: string) => (...values: unknown[]) =>
      new Promise((resolve, reject) => {
        waiting.set(next, { resolve, reject });
        worker.postMessage({ id: next++, name, values });
      }),
  });
}
