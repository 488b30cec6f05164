/** The page: settings, photographs and what was found, kept together with what is on the screen. */

import { degrees, radians, wrapDegrees } from "./maths/angles";
import { copy, download, report } from "./saving";
import type { Again, Loading, Session } from "./session";
import { type Settings, toLink } from "./settings";
import { Controls, element } from "./ui/controls";
import { Dial } from "./ui/dial";
import { listenForFiles } from "./ui/files";
import { drawCurve, drawWheel } from "./ui/plots";
import { type Spot, listenToPointer } from "./ui/pointer";
import { FEW, agreeing, showTable, shownAngle, summaryOf, verdict, wordsOn } from "./ui/readout";
import { type Scene, Stage } from "./ui/stage";
import type { Look } from "./workers/matching";

export interface Example {
  name: string;
  pictures: [string, string];
}

const AGAIN_AFTER = 300;
const SUMMARY_AFTER = 700;
const LINK_AFTER = 500;
const MESSAGE_FOR = 10_000;
/** Degrees a second. */
const SPIN = 36;

export class Page {
  private readonly stage = new Stage(element("stage"), element<HTMLCanvasElement>("canvas"));
  private readonly dial = new Dial(document.querySelector("#dial")!, (angle) => this.turnTo(angle));
  private readonly controls: Controls;
  private own = false;
  private looking: (Spot & { look: Look }) | null = null;
  private matching = false;
  private wanted = false;
  private drawing = 0;
  private againTimer = 0;
  private summaryTimer = 0;
  private messageTimer = 0;
  private linkTimer = 0;
  private busy = 0;
  /** For who measures: how often it was matched, and when first, in milliseconds after arrival. */
  turns = 0;
  firstMatch = 0;

  constructor(
    readonly session: Session, readonly examples: Example[], public settings: Settings, readonly standard: Settings,
  ) {
    this.controls = new Controls(session.steerer, examples.map(({ name }) => name), (part) => void this.change(part));
    const { stage } = this;
    listenForFiles(stage.element, (place, file) => void this.openOwn(place, file), (x, y) => stage.placeAt(x, y));
    this.listen();
    this.controls.show(settings, false);
    this.show();
  }

  // What visitors do --------------------------------------------------------------------------------------------------

  /** Turn the second photograph; degrees, counter-clockwise. */
  turnTo(angle: number): void {
    this.settings = { ...this.settings, turn: wrapDegrees(angle) };
    this.request();
    clearTimeout(this.linkTimer); // browsers allow few changes of the address
    this.linkTimer = window.setTimeout(() => this.remember(), LINK_AFTER);
  }

  /** Change settings, and do what they ask for. */
  async change(part: Partial<Settings>): Promise<void> {
    const before = this.settings;
    this.settings = { ...before, ...part };
    if (this.settings.strategy !== "max-similarity") this.settings.order ??= this.standard.order;
    if (part.example !== undefined) await this.openExample();
    else if (this.settings.side !== before.side) await this.reopen();
    else if (this.settings.keypoints !== before.keypoints) await this.compare();
    else this.request();
    if (!this.settings.again) this.session.again = null;
    this.controls.show(this.settings, this.own);
    this.remember();
  }

  /** Open the photographs of the example that is chosen. */
  async openExample(): Promise<void> {
    const { pictures } = this.examples[this.settings.example] ?? this.examples[0];
    const files = await Promise.all(pictures.map(async (name) => (await fetch(`./examples/${name}`)).blob()));
    await Promise.all(files.map((file, place) => this.open(place as 0 | 1, file, pictures[place])));
    this.own = false;
    this.controls.show(this.settings, false);
    await this.compare();
  }

  async openOwn(place: 0 | 1, file: File): Promise<void> {
    if (!(await this.open(place, file, file.name || "the pasted picture"))) return;
    this.own = true;
    this.controls.show(this.settings, true);
    await this.compare();
  }

  // What follows ------------------------------------------------------------------------------------------------------

  private async reopen(): Promise<void> {
    const photographs = [...this.session.photographs];
    await Promise.all(photographs.map((one, place) => one && this.open(place as 0 | 1, one.file, one.name)));
    await this.compare();
  }

  /** Whether it could be read. */
  private async open(place: 0 | 1, file: Blob, name: string): Promise<boolean> {
    this.wait(1, "Looking at the photograph…");
    try {
      await this.session.open(place, file, name, this.settings.side);
      this.say("");
      return true;
    } catch (error) {
      this.say(error instanceof Error ? error.message : String(error));
      return false;
    } finally {
      this.wait(-1);
    }
  }

  /** Compare the photographs anew. */
  private async compare(): Promise<void> {
    this.looking = null;
    this.show();
    if (!this.session.complete) return;
    this.wait(1, "Comparing…");
    try {
      await this.session.setPair(this.settings.keypoints);
      this.request();
    } catch (error) {
      this.say(`This did not work, perhaps with fewer keypoints: ${error instanceof Error ? error.message : error}`);
    } finally {
      this.wait(-1);
    }
  }

  /** Ask for a match at the turn that is set by then; while one is made, the newest request waits, others go. */
  private request(): void {
    this.show();
    this.wanted = true;
    clearTimeout(this.againTimer);
    if (this.settings.again) this.againTimer = window.setTimeout(() => void this.describeAgain(), AGAIN_AFTER);
    if (!this.matching) void this.run();
  }

  private async run(): Promise<void> {
    this.matching = true;
    try {
      while (this.wanted && this.session.complete) {
        this.wanted = false;
        await this.session.matchSteered(this.settings);
        this.turns += 1;
        this.firstMatch ||= performance.now();
        if (this.looking) await this.lookAt(this.looking, true);
        this.show();
        this.summarise();
      }
    } catch (error) {
      this.say(`This did not work: ${error instanceof Error ? error.message : error}`);
    } finally {
      this.matching = false;
    }
  }

  private async describeAgain(): Promise<void> {
    if (!this.session.complete) return;
    this.session.again = null;
    this.show();
    try {
      await this.session.matchAgain(this.settings);
    } catch (error) {
      this.say(`This did not work: ${error instanceof Error ? error.message : error}`);
    }
    this.show();
  }

  /** Look at a keypoint, or at none; at one that is looked at already, again if the photograph was turned. */
  private async lookAt(spot: Spot | null, again = false): Promise<void> {
    if (!again && spot?.side === this.looking?.side && spot?.index === this.looking?.index) return;
    this.looking = spot && { ...spot, look: await this.session.look("steered", spot.side, spot.index, this.settings) };
    this.show();
  }

  // What is on the screen ---------------------------------------------------------------------------------------------

  private get shownAgain(): Again | null {
    const { again } = this.session;
    return this.settings.again && again?.turn === this.settings.turn ? again : null;
  }

  /** Draw everything with the next frame. */
  private show(): void {
    this.drawing ||= requestAnimationFrame(() => {
      this.drawing = 0;
      this.draw();
    });
  }

  private scene(): Scene {
    const { photographs } = this.session, match = this.shownAgain ?? this.session.match;
    const pictures = photographs.map((one, side) => {
      if (!one) return null;
      const keypoints = side && match && "keypoints" in match ? (match as Again).keypoints : one.keypoints;
      return { bitmap: one.shown, size: one.size, keypoints: keypoints.subarray(0, 2 * this.settings.keypoints) };
    }) as Scene["pictures"];
    return {
      pictures,
      turn: radians(this.settings.turn),
      matches: match && { first: match.first, second: match.second, inliers: match.homography.inliers },
      outline: match && agreeing(match) >= FEW ? this.session.unturned(match) : null,
      look: this.looking && !this.shownAgain ? { ...this.looking, neighbours: this.looking.look.neighbours } : null,
    };
  }

  private draw(): void {
    const { match } = this.session, { turn } = this.settings;
    this.stage.draw(this.scene());
    const { places, radius } = this.stage.layout!, sure = agreeing(match) >= FEW;
    const angle = sure ? (match?.angle ?? null) : null, found = angle === null ? null : degrees(angle);
    this.dial.place(places[1].x, places[1].y, radius);
    this.dial.show(turn, found);
    places.forEach((place, side) => {
      const below = side ? radius + 34 : (place.size.height * place.scale) / 2 + 8;
      Object.assign(element(`choose${side}`).style, { left: `${place.x}px`, top: `${place.y + below}px` });
    });
    const field = element<HTMLInputElement>("turn");
    if (document.activeElement !== field) field.value = String(Math.round(turn));
    element("found").textContent = shownAngle(angle);
    showTable(match, "", "–");
    showTable(this.shownAgain, "-again", this.settings.again ? "…" : "–");
    element("verdict").textContent = verdict(match, this.settings.strategy);
    drawCurve(element<HTMLCanvasElement>("curve"), this.session.steerer, match?.curve ?? null, turn, found);
    drawWheel(element<HTMLCanvasElement>("wheel"), this.looking?.look.spectrum ?? null);
    element("look").textContent = wordsOn(this.looking);
  }

  private summarise(): void {
    clearTimeout(this.summaryTimer);
    this.summaryTimer = window.setTimeout(() => {
      if (this.session.match) element("summary").textContent = summaryOf(this.session.match);
    }, SUMMARY_AFTER);
  }

  /** Say what is being waited for; calls come in pairs of 1 and -1. */
  private wait(change: 1 | -1, words = ""): void {
    this.busy += change;
    if (words) element("doing").textContent = words;
    element("waiting").hidden = this.busy === 0;
  }

  loading({ loaded, total }: Loading): void {
    const progress = element<HTMLProgressElement>("progress");
    progress.value = loaded / total;
    if (loaded === total) progress.removeAttribute("value"); // as long as it takes
  }

  say(words: string): void {
    element("message").textContent = words;
    element("message").hidden = !words;
    clearTimeout(this.messageTimer);
    this.messageTimer = window.setTimeout(() => (element("message").hidden = true), MESSAGE_FOR);
  }

  private remember(): void {
    history.replaceState(null, "", `#${toLink(this.settings, this.standard)}`);
  }

  // Listening ---------------------------------------------------------------------------------------------------------

  private listen(): void {
    const on = (id: string, heard: () => void): void => element(id).addEventListener("click", heard);
    on("left", () => this.turnTo(this.settings.turn + 15));
    on("right", () => this.turnTo(this.settings.turn - 15));
    on("upright", () => this.turnTo(0));
    on("spin", () => this.spin());
    on("explain", () => element<HTMLDialogElement>("how").showModal());
    on("save-picture", () => this.stage.picture(this.scene()).toBlob((blob) => blob && download(blob, "matches.png")));
    on("save-matches", () => this.saveMatches());
    on("copy-link", () => void this.copyLink());
    element("turn").addEventListener("input", () => {
      const value = element<HTMLInputElement>("turn").valueAsNumber;
      if (Number.isFinite(value)) this.turnTo(value);
    });
    new ResizeObserver(() => this.show()).observe(this.stage.element);
    new MutationObserver(() => this.show()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    const drawn = (): Scene | null => (this.session.match ? this.scene() : null);
    listenToPointer(this.stage, this.dial, drawn, (spot) => void this.lookAt(spot));
  }

  private spin(): void {
    const button = element("spin"), on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    let last = performance.now();
    const step = (now: number): void => {
      if (button.getAttribute("aria-pressed") !== "true") return;
      this.turnTo(this.settings.turn + ((now - last) / 1000) * SPIN);
      last = now;
      requestAnimationFrame(step);
    };
    if (on) requestAnimationFrame(step);
  }

  private saveMatches(): void {
    const match = this.shownAgain ?? this.session.match;
    if (!match) return this.say("There is nothing to save yet.");
    const text = JSON.stringify(report(this.session, match, this.settings)) + "\n";
    download(new Blob([text], { type: "application/json" }), "matches.json");
  }

  private async copyLink(): Promise<void> {
    this.remember();
    const done = await copy(location.href);
    this.say(done ? "The link is copied. It restores the settings, not your photographs." : location.href);
  }
}
