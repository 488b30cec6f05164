/** Two photographs and what is found of them: the network and the matcher in their workers, and what they said last. */

import { radians } from "./maths/angles";
import { type Affine, type Size, invert, scaling, turnAboutCentre } from "./maths/geometry";
import { type Matrix, multiply } from "./maths/homography";
import { Steerer } from "./maths/steerer";
import type { Backend, Features } from "./network";
import type { Model, Settings } from "./settings";
import type { Look, MatchingWorker, Result, Way } from "./workers/matching";
import type { NetworkWorker } from "./workers/network";
import { type Remote, connect } from "./workers/rpc";

export interface Photograph extends Features {
  name: string;
  file: Blob;
  size: Size; // of what the network saw
  stored: Size; // of the file
  shown: ImageBitmap;
  ms: number; // that the network took
}

/** What was found, and how far the second photograph was turned then, in degrees. */
export interface Match extends Result {
  turn: number;
}

export interface Again extends Match {
  keypoints: Float32Array;
  msNetwork: number;
}

export interface Loading {
  what: "library" | "model";
  loaded: number;
  total: number;
}

export class Session {
  readonly steerer: Steerer;
  readonly photographs: [Photograph | null, Photograph | null] = [null, null];
  match: Match | null = null;
  again: Again | null = null;
  machine: { backend: Backend; threads: number } | null = null;
  private readonly network: Remote<NetworkWorker>;
  private readonly matching: Remote<MatchingWorker>;
  /** When network and matcher are loaded. */
  readonly ready: Promise<unknown>;
  private opening = Promise.resolve();

  constructor(readonly model: Model, modelUrl: string, backend: Backend | null, heard: (news: Loading) => void) {
    this.steerer = new Steerer(model.frequencies);
    const networkWorker = new Worker(new URL("./workers/network.ts", import.meta.url), { type: "module" });
    const matchingWorker = new Worker(new URL("./workers/matching.ts", import.meta.url), { type: "module" });
    this.network = connect<NetworkWorker>(networkWorker, heard);
    this.matching = connect<MatchingWorker>(matchingWorker);
    const loaded = this.network.load(modelUrl, model.bytes, backend).then((machine) => (this.machine = machine));
    this.ready = Promise.all([loaded, this.matching.load(model.frequencies)]);
  }

  /** Whether there are two photographs to match. */
  get complete(): boolean {
    return this.photographs[0] !== null && this.photographs[1] !== null;
  }

  /** Read and describe a photograph; one after the other, in the order of the calls. */
  open(place: 0 | 1, file: Blob, name: string, side: number): Promise<void> {
    const opened = this.opening.then(async () => {
      await this.ready;
      const found = await this.network.open(place, file, name, side);
      this.photographs[place]?.shown.close();
      this.photographs[place] = { ...found, name, file };
    });
    this.opening = opened.catch(() => {}); // the next one is none the worse for it
    return opened;
  }

  /** Compare the descriptions of both; to be called when one has changed, or how many count. */
  async setPair(keypoints: number): Promise<void> {
    const [first, second] = this.photographs;
    this.match = this.again = null;
    await this.matching.setPair("steered", told(first!), told(second!), keypoints);
  }

  /** Match by steering: as far as the second photograph is turned, its descriptions are. */
  async matchSteered(settings: Settings): Promise<Match> {
    const { turn } = settings, angle = radians(turn);
    this.match = { ...(await this.matching.match("steered", angle, angle, optionsOf(settings))), turn };
    return this.match;
  }

  /** Turn the pixels, run the network, and match what it finds. */
  async matchAgain(settings: Settings): Promise<Again> {
    const { turn } = settings, second = this.photographs[1]!;
    const { ms, ...features } = await this.network.describeTurned(radians(turn));
    const { keypoints } = features, first = told(this.photographs[0]!);
    const compared = await this.matching.setPair("again", first, { ...told(second), ...features }, settings.keypoints);
    const found = await this.matching.match("again", radians(turn), 0, optionsOf(settings));
    this.again = { ...found, ms: found.ms + compared, turn, keypoints, msNetwork: ms };
    return this.again;
  }

  look(way: Way, side: 0 | 1, index: number, settings: Settings): Promise<Look> {
    return this.matching.look(way, side, index, way === "again" ? 0 : radians(settings.turn), optionsOf(settings));
  }

  /** Describe RGB pixels as they are: for tests of the network in this browser. */
  async describe(data: Uint8Array, width: number, height: number): Promise<Features> {
    await this.ready;
    return this.network.describe(data, width, height);
  }

  /** The homography from the first to the second photograph as the network saw it, unturned. */
  unturned(match: Match): Matrix | null {
    const { matrix } = match.homography, second = this.photographs[1]!;
    return matrix && multiply(full(invert(turnAboutCentre(second.size, radians(match.turn)).map)), matrix);
  }

  /** The homography between pixels of the files. */
  stored(match: Match): Matrix | null {
    const [first, second] = this.photographs as [Photograph, Photograph], own = this.unturned(match);
    if (!own) return null;
    const there = full(scaling(second.size, second.stored)), back = full(scaling(first.stored, first.size));
    const matrix = multiply(there, multiply(own, back));
    return matrix.map((value) => value / matrix[8]);
  }
}

const full = (map: Affine): Matrix => [...map, 0, 0, 1];

const told = ({ keypoints, descriptions, size }: Photograph) => ({ keypoints, descriptions, size });

const optionsOf = ({ strategy, order, inverseTemperature, threshold }: Settings) =>
  ({ strategy, order, inverseTemperature, threshold });
