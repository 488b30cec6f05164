/**
 * Matching by the strategies of the package (src/steerers/matching/strategies.py), for a second picture that is turned.
 *
 * Turning the second picture by an angle steers its descriptions; the similarity of a pair, as a function of the
 * rotation t of the first, moves along by that angle: s(t - turn). So the coefficients of all pairs are computed once,
 * and each turn evaluates them anew, which gives the same as steering the descriptions and matching those.
 */

import { circularMode, wrapRadians } from "./angles";
import type { Kernels } from "./kernels";
import { POINTS, highest, largestOf, refine } from "./polynomial";
import type { Steerer } from "./steerer";

export const STRATEGIES = ["max-similarity", "max-matches", "subset", "dual-softmax", "procrustes"] as const;
export type Strategy = (typeof STRATEGIES)[number];

export interface Options {
  strategy: Strategy;
  /** Rotations that are tried; null is every angle. */
  order: number | null;
  inverseTemperature: number;
  threshold: number;
}

export interface Found {
  /** Matches, the best first: indices of both pictures, probability, rotation in radians (or none). */
  first: Int32Array;
  second: Int32Array;
  scores: Float32Array;
  angles: Float64Array | null;
  /** Rotation of the first picture, in radians counter-clockwise, that brings it onto the second. */
  angle: number | null;
  /** Coefficients of the mean similarity of the matches over all rotations; null without matches. */
  curve: Float64Array | null;
}

export interface Neighbour {
  index: number;
  similarity: number;
  probability: number;
}

type Pairs = Pick<Found, "first" | "second" | "scores">;

const SUBSET = 1000;

/** Whether a strategy is defined for a steerer, and why not. */
export function refusal(strategy: Strategy, steerer: Steerer): string | null {
  return strategy === "procrustes" && !steerer.isFrequency1
    ? "needs descriptions that all turn once with the picture; those of this model turn up to six times"
    : null;
}

export class Matcher {
  private count0 = 0;
  private count1 = 0;
  /** Where there are many descriptions they are shuffled, so that the first are a random subset; where each was. */
  private order0: Int32Array | null = null;
  private order1: Int32Array | null = null;
  /** Whether the scores in memory are the maxima over every angle, which no turn changes. */
  private everyAngle = false;

  constructor(private readonly kernels: Kernels, readonly steerer: Steerer) {}

  /** Take (N, D) and (M, D) descriptions, of any lengths. */
  setPair(descriptions0: Float32Array, descriptions1: Float32Array): void {
    const { dim } = this.steerer;
    [this.count0, this.count1] = [descriptions0.length / dim, descriptions1.length / dim];
    [this.order0, this.order1] = [shuffle(this.count0), shuffle(this.count1)];
    this.everyAngle = false;
    if (!this.count0 || !this.count1) return;
    this.kernels.setPair(this.steerer, pick(descriptions0, this.order0, dim), pick(descriptions1, this.order1, dim));
  }

  /** Match, with the second picture turned counter-clockwise by `turn` radians. */
  match(turn: number, options: Options): Found {
    const refused = refusal(options.strategy, this.steerer);
    if (refused) throw new Error(`${options.strategy} ${refused}`);
    const { pairs, tried } = this.count0 && this.count1 ? this.find(turn, options) : { pairs: NOTHING, tried: null };
    const coefficients = Array.from(pairs.first, (i, k) => this.kernels.coefficients(i, pairs.second[k]));
    const angles = pairs.scores.length ? this.rotations(coefficients, turn, options, tried) : null;
    return {
      first: restore(pairs.first, this.order0),
      second: restore(pairs.second, this.order1),
      scores: pairs.scores,
      angles,
      angle: angles && wrapRadians(circularMode(angles, pairs.scores)),
      curve: this.meanCurve(coefficients, pairs.scores, turn),
    };
  }

  /** The most similar of the other picture to one keypoint, at its best rotation of those that a strategy tries. */
  neighbours(side: 0 | 1, index: number, turn: number, options: Options, count: number): Neighbour[] {
    if (!this.count0 || !this.count1) return [];
    const own = place(index, side ? this.order1 : this.order0), others = side ? this.count0 : this.count1;
    const tried = options.strategy === "dual-softmax" ? [-turn] : rotationsOf(options.order ?? 32).map((t) => t - turn);
    const weights = tried.map((angle) => this.steerer.wavesAt(angle));
    const similarities = Float64Array.from({ length: others }, (_, other) => {
      const coefficients = side ? this.kernels.coefficients(other, own) : this.kernels.coefficients(own, other);
      let best = -Infinity;
      for (const waves of weights) {
        best = Math.max(best, waves.reduce((sum, wave, k) => sum + wave * coefficients[k], 0));
      }
      return best;
    });
    const total = similarities.reduce((sum, s) => sum + Math.exp(options.inverseTemperature * s), 0);
    const order = similarities.map((_, k) => k).sort((a, b) => similarities[b] - similarities[a]);
    return Array.from(order.slice(0, count), (k) => ({
      index: (side ? this.order0 : this.order1)?.[k] ?? k,
      similarity: similarities[k],
      probability: Math.exp(options.inverseTemperature * similarities[k]) / total,
    }));
  }

  // Strategies --------------------------------------------------------------------------------------------------------

  /** Matches, and the rotation of all where the strategy tries single ones; both count from the unturned picture. */
  private find(turn: number, options: Options): { pairs: Pairs; tried: number | null } {
    const everything: [number, number] = [this.count0, this.count1];
    switch (options.strategy) {
      case "dual-softmax":
        return { pairs: this.matchAt([-turn], everything, options), tried: null };
      case "max-matches":
        return this.mostMatches(turn, everything, options);
      case "subset": {
        const few: [number, number] = [Math.min(this.count0, SUBSET), Math.min(this.count1, SUBSET)];
        const { pairs, tried } = this.mostMatches(turn, few, options);
        if (few[0] === this.count0 && few[1] === this.count1 && pairs.scores.length) return { pairs, tried };
        const chosen = pairs.scores.length ? tried : null;
        return { pairs: this.matchAt([chosen ?? -turn], everything, options), tried: chosen };
      }
      default: {
        const tried = this.triedAt(turn, options);
        return { pairs: tried ? this.matchAt(tried, everything, options) : this.matchEverywhere(options), tried: null };
      }
    }
  }

  /** The rotations that are tried, as seen from the unturned picture; null is every angle. */
  private triedAt(turn: number, { strategy, order }: Options): number[] | null {
    if (strategy === "procrustes" || order === null) return null;
    return rotationsOf(order).map((rotation) => rotation - turn);
  }

  private matchAt(rotations: readonly number[], [rows, columns]: [number, number], options: Options): Pairs {
    this.kernels.largest(rotations, rows, columns);
    this.everyAngle = false;
    return this.assign(rows, columns, options);
  }

  private matchEverywhere(options: Options): Pairs {
    if (!this.everyAngle) this.kernels.highest(POINTS * this.steerer.top || 1, this.count0, this.count1);
    this.everyAngle = true;
    return this.assign(this.count0, this.count1, options);
  }

  /** Match after every rotation; the one with the most matches, or whose probabilities add up to more. */
  private mostMatches(turn: number, size: [number, number], options: Options): { pairs: Pairs; tried: number | null } {
    const rotations = this.triedAt(turn, options) ?? rotationsOf(16).map((rotation) => rotation - turn);
    let best: Pairs = NOTHING, tried = rotations[0], most = -1;
    for (const rotation of rotations) {
      const pairs = this.matchAt([rotation], size, options);
      const total = pairs.scores.reduce((sum, score) => sum + score, 0);
      const value = pairs.scores.length + total / (1 + 2 * pairs.scores.length);
      if (value > most) [best, tried, most] = [pairs, rotation, value];
    }
    return { pairs: best, tried };
  }

  /** Mutual maxima of the dual softmax above the threshold, the best first. */
  private assign(rows: number, columns: number, options: Options): Pairs {
    const scale = options.inverseTemperature;
    const { rowLogs, columnLogs, rowBest, columnBest } = this.kernels.assign(rows, columns, scale);
    const { scores } = this.kernels, { stride } = this.kernels.layout!;
    const found: [number, number, number][] = [];
    for (let i = 0; i < rows; i++) {
      const j = rowBest[i];
      if (j < 0 || j >= columns || columnBest[j] !== i) continue;
      const probability = Math.exp(2 * scale * scores[i * stride + j] - rowLogs[i] - columnLogs[j]);
      if (probability > options.threshold) found.push([i, j, Math.min(probability, 1)]);
    }
    found.sort((a, b) => b[2] - a[2]);
    return {
      first: Int32Array.from(found, (match) => match[0]),
      second: Int32Array.from(found, (match) => match[1]),
      scores: Float32Array.from(found, (match) => match[2]),
    };
  }

  // Rotations ---------------------------------------------------------------------------------------------------------

  /** Of every match, in radians in [-pi, pi): refined between those that were tried. */
  private rotations(
    coefficients: Float64Array[], turn: number, options: Options, tried: number | null,
  ): Float64Array | null {
    if (options.strategy === "dual-softmax" || (options.strategy === "subset" && tried === null)) return null;
    const rotations = this.triedAt(turn, options), gap = (2 * Math.PI) / (options.order ?? 16);
    return Float64Array.from(coefficients, (own) => {
      if (tried !== null) return wrapRadians(refine(this.steerer, own, tried, gap) + turn);
      if (!rotations) return wrapRadians(highest(this.steerer, own).angle + turn);
      return wrapRadians(refine(this.steerer, own, largestOf(this.steerer, own, rotations).angle, gap) + turn);
    });
  }

  /** Coefficients of the mean similarity of matches, by probability, as a function of the rotation of the first. */
  private meanCurve(coefficients: Float64Array[], scores: Float32Array, turn: number): Float64Array | null {
    if (!scores.length) return null;
    const { waves } = this.steerer, mean = new Float64Array(waves.length);
    const total = scores.reduce((sum, score) => sum + score, 0);
    coefficients.forEach((own, k) => own.forEach((value, wave) => (mean[wave] += (scores[k] * value) / total)));
    const moved = mean.slice();
    waves.forEach(({ frequency, sine }, k) => {
      if (!sine) return;
      const cos = Math.cos(frequency * turn), sin = Math.sin(frequency * turn);
      moved[k - 1] = cos * mean[k - 1] - sin * mean[k];
      moved[k] = sin * mean[k - 1] + cos * mean[k];
    });
    return moved;
  }
}

const NOTHING: Pairs = { first: new Int32Array(0), second: new Int32Array(0), scores: new Float32Array(0) };

/** Those of an order, in radians. */
export function rotationsOf(order: number): number[] {
  return Array.from({ length: order }, (_, k) => (2 * Math.PI * k) / order);
}

/** Where each of so many came from after shuffling, always the same; null where they are few enough to stay. */
function shuffle(count: number): Int32Array | null {
  if (count <= SUBSET) return null;
  const order = Int32Array.from({ length: count }, (_, k) => k), random = randomNumbers(count);
  for (let k = count - 1; k > 0; k--) {
    const other = Math.floor(random() * (k + 1));
    [order[k], order[other]] = [order[other], order[k]];
  }
  return order;
}

/** Numbers in [0, 1) that follow from a seed (mulberry32). */
export function randomNumbers(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function pick(descriptions: Float32Array, order: Int32Array | null, dim: number): Float32Array {
  if (!order) return descriptions;
  const picked = new Float32Array(descriptions.length);
  order.forEach((from, to) => picked.set(descriptions.subarray(from * dim, (from + 1) * dim), to * dim));
  return picked;
}

const restore = (indices: Int32Array, order: Int32Array | null): Int32Array =>
  order ? indices.map((index) => order[index]) : indices;

const place = (index: number, order: Int32Array | null): number => (order ? order.indexOf(index) : index);
