/** What a visitor can choose, and the link that brings it back. */

import type { Options, Strategy } from "./maths/matcher";
import { STRATEGIES } from "./maths/matcher";
import type { Backend } from "./network";

/** What web/prepare.py says of the model. */
export interface Model {
  name: string;
  version: string;
  frequencies: number[];
  strategy: Strategy;
  order: number;
  inverseTemperature: number;
  threshold: number;
  keypoints: number;
  bytes: number;
}

export interface Settings extends Options {
  /** Degrees, counter-clockwise, in (-180, 180]. */
  turn: number;
  keypoints: number;
  /** Longest side of what the network sees. */
  side: number;
  example: number;
  again: boolean;
  /** Null: the GPU where there is one. */
  backend: Backend | null;
}

export const ORDERS = [4, 8, 16, 32, null] as const;
export const KEYPOINTS = [250, 500, 1000, 2000] as const;
export const SIDES = [320, 480, 640, 1024] as const;
const INVERSE_TEMPERATURES: [number, number] = [1, 60], THRESHOLDS: [number, number] = [0, 0.9];

/** What suits the model, and a small screen where that is one. */
export function defaults(model: Model, small: boolean): Settings {
  return {
    strategy: model.strategy,
    order: model.order,
    inverseTemperature: model.inverseTemperature,
    threshold: model.threshold,
    turn: 0,
    keypoints: small ? 500 : 1000,
    side: small ? 480 : 640,
    example: 0,
    again: false,
    backend: null,
  };
}

/** Settings that differ from others, as the part of an address after #. */
export function toLink(settings: Settings, standard: Settings): string {
  const told = new URLSearchParams();
  for (const [name, value] of Object.entries(settings) as [keyof Settings, unknown][]) {
    if (value !== standard[name]) told.set(name, value === null ? "every" : String(value));
  }
  return told.toString();
}

/** The other way; what makes no sense is left at its default. */
export function fromLink(text: string, standard: Settings): Settings {
  const told = new URLSearchParams(text.replace(/^#/, ""));
  const one = <T>(name: string, of: readonly T[], fallback: T): T => {
    const place = of.findIndex((known) => String(known ?? "every") === told.get(name));
    return place < 0 ? fallback : of[place];
  };
  const number = (name: string, [low, high]: [number, number], fallback: number): number => {
    const value = Number(told.get(name) ?? NaN);
    return Number.isFinite(value) && value >= low && value <= high ? value : fallback;
  };
  return {
    strategy: one("strategy", STRATEGIES, standard.strategy),
    order: one<number | null>("order", ORDERS, standard.order),
    inverseTemperature: number("inverseTemperature", INVERSE_TEMPERATURES, standard.inverseTemperature),
    threshold: number("threshold", THRESHOLDS, standard.threshold),
    turn: number("turn", [-180, 180], standard.turn),
    keypoints: one("keypoints", KEYPOINTS, standard.keypoints as 1000),
    side: one("side", SIDES, standard.side as 640),
    example: number("example", [0, 100], standard.example),
    again: one("again", [true, false], standard.again),
    backend: one<Backend | null>("backend", ["wasm", "webgpu"], standard.backend),
  };
}
