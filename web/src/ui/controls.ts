/** The form of settings: from and to the record, in words. */

import { type Strategy, STRATEGIES, refusal } from "../maths/matcher";
import type { Steerer } from "../maths/steerer";
import { KEYPOINTS, ORDERS, SIDES, type Settings } from "../settings";

const STRATEGY_WORDS: Record<Strategy, string> = {
  "max-similarity": "each pair at its best angle (max-similarity)",
  "max-matches": "the angle with most matches (max-matches)",
  subset: "the same, found on 1000 (subset)",
  "dual-softmax": "as it stands, no angles tried (dual-softmax)",
  procrustes: "in closed form (procrustes)",
};

export const element = <T extends HTMLElement = HTMLElement>(id: string): T => document.querySelector<T>(`#${id}`)!;

export class Controls {
  private readonly strategy = element<HTMLSelectElement>("strategy");
  private readonly order = element<HTMLSelectElement>("order");
  private readonly keypoints = element<HTMLSelectElement>("keypoints");
  private readonly side = element<HTMLSelectElement>("side");
  private readonly example = element<HTMLSelectElement>("example");
  private readonly inverseTemperature = element<HTMLInputElement>("inverse-temperature");
  private readonly threshold = element<HTMLInputElement>("threshold");
  private readonly again = element<HTMLInputElement>("again");

  /** @param changed is told what a visitor changed. */
  constructor(steerer: Steerer, examples: string[], changed: (part: Partial<Settings>) => void) {
    fill(this.strategy, STRATEGIES.map((name) => [name, STRATEGY_WORDS[name]]));
    for (const option of this.strategy.options) {
      const reason = refusal(option.value as Strategy, steerer);
      option.disabled = reason !== null;
      if (reason) option.title = option.text = `${option.text}: ${reason}`;
    }
    const words = (order: number | null): string => (order ? `${order}, ${360 / order}° apart` : "every angle");
    fill(this.order, ORDERS.map((order) => [String(order), words(order)]));
    fill(this.keypoints, KEYPOINTS.map((count) => [String(count), `the best ${count}`]));
    fill(this.side, SIDES.map((side) => [String(side), `${side} pixels`]));
    fill(this.example, [...examples.map((name, k): [string, string] => [String(k), name]), ["own", "my own"]]);
    const heard = (input: HTMLElement, kind: string, part: () => Partial<Settings>): void =>
      input.addEventListener(kind, () => changed(part()));
    heard(this.strategy, "change", () => ({ strategy: this.strategy.value as Strategy }));
    heard(this.order, "change", () => ({ order: this.order.value === "null" ? null : Number(this.order.value) }));
    heard(this.keypoints, "change", () => ({ keypoints: Number(this.keypoints.value) }));
    heard(this.side, "change", () => ({ side: Number(this.side.value) }));
    heard(this.example, "change", () => (this.example.value === "own" ? {} : { example: Number(this.example.value) }));
    heard(this.inverseTemperature, "input", () => ({ inverseTemperature: Number(this.inverseTemperature.value) }));
    heard(this.threshold, "input", () => ({ threshold: Number(this.threshold.value) }));
    heard(this.again, "change", () => ({ again: this.again.checked }));
  }

  /** Show settings; `own` where photographs are the visitor's. */
  show(settings: Settings, own: boolean): void {
    this.strategy.value = settings.strategy;
    this.order.value = String(settings.order);
    this.order.disabled = settings.strategy === "dual-softmax" || settings.strategy === "procrustes";
    this.order.querySelector<HTMLOptionElement>('[value="null"]')!.disabled = settings.strategy !== "max-similarity";
    this.keypoints.value = String(settings.keypoints);
    this.side.value = String(settings.side);
    this.example.value = own ? "own" : String(settings.example);
    this.inverseTemperature.value = String(settings.inverseTemperature);
    this.threshold.value = String(settings.threshold);
    this.again.checked = settings.again;
    element("inverse-temperature-value").textContent = String(settings.inverseTemperature);
    element("threshold-value").textContent = settings.threshold.toFixed(2);
  }
}

function fill(select: HTMLSelectElement, options: readonly (readonly [string, string])[]): void {
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
}
