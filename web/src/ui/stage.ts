/** The photographs, their keypoints and matches, drawn on a canvas. */

import type { Size } from "../maths/geometry";
import { type Matrix, project } from "../maths/homography";
import { type Layout, type Place, layOut, toStage } from "./layout";

/** What is drawn; keypoints are pixels of what the network saw, unturned. */
export interface Scene {
  pictures: [Drawn | null, Drawn | null];
  /** Radians. */
  turn: number;
  matches: { first: ArrayLike<number>; second: ArrayLike<number>; inliers: boolean[] } | null;
  /** From the first to the second photograph, unturned; drawn as an outline. */
  outline: Matrix | null;
  /** A keypoint that is looked at, and its like in the other photograph. */
  look: { side: 0 | 1; index: number; neighbours: { index: number; probability: number }[] } | null;
}

export interface Drawn {
  bitmap: ImageBitmap;
  size: Size;
  keypoints: Float32Array;
}

/** So many lines can be told apart; of more matches the best are drawn, and all have dots. */
const MOST_LINES = 160;
const STACKED_BELOW = 620;
const NEAR = 14;
const EDGE = 10;

export class Stage {
  layout: Layout | null = null;
  private readonly context: CanvasRenderingContext2D;

  constructor(readonly element: HTMLElement, readonly canvas: HTMLCanvasElement) {
    this.context = canvas.getContext("2d")!;
  }

  /** Draw a scene at the size that the stage has now. */
  draw(scene: Scene): void {
    const [first, second] = scene.pictures, ratio = window.devicePixelRatio || 1;
    const width = this.element.clientWidth, stacked = width < STACKED_BELOW;
    const fallback = { width: 4, height: 3 };
    const place = (height: number): Layout =>
      layOut({ width, height }, first?.size ?? fallback, second?.size ?? fallback, stacked);
    this.element.style.height = stacked ? `${place(0).height}px` : "";
    const height = this.element.clientHeight;
    this.layout = place(height);
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      [this.canvas.width, this.canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    }
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.paint(this.context, scene, this.layout);
  }

  /** The keypoint nearest to a point of the stage, if one is near. */
  keypointAt(scene: Scene, x: number, y: number): { side: 0 | 1; index: number } | null {
    let best: { side: 0 | 1; index: number } | null = null, nearest = NEAR;
    for (const side of [0, 1] as const) {
      const drawn = scene.pictures[side];
      if (!drawn || !this.layout) continue;
      for (let k = 0; k < drawn.keypoints.length / 2; k++) {
        const [px, py] = this.point(scene, this.layout, side, k);
        const distance = Math.hypot(px - x, py - y);
        if (distance < nearest) [nearest, best] = [distance, { side, index: k }];
      }
    }
    return best;
  }

  /** Whether a point of the window is on the second photograph or near it, within the ring. */
  isOnSecond(x: number, y: number): boolean {
    return this.distances(x, y)[1] < this.layout!.radius;
  }

  /** Which photograph is nearer to a point of the window. */
  placeAt(x: number, y: number): 0 | 1 {
    const [first, second] = this.distances(x, y);
    return first < second ? 0 : 1;
  }

  /** What is drawn, for keeping: on the background of the page, without what lies around. */
  picture(scene: Scene): HTMLCanvasElement {
    const { places: [first, second], radius } = this.layout!, ratio = this.canvas.width / this.element.clientWidth;
    const [x, y] = [(first.size.width * first.scale) / 2, (first.size.height * first.scale) / 2];
    const left = Math.min(first.x - x, second.x - radius) - EDGE, top = Math.min(first.y - y, second.y - radius) - EDGE;
    const right = Math.max(first.x + x, second.x + radius) + EDGE;
    const bottom = Math.max(first.y + y, second.y + radius) + EDGE;
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [ratio * (right - left), ratio * (bottom - top)];
    const context = canvas.getContext("2d")!;
    context.fillStyle = getComputedStyle(this.element).getPropertyValue("--card");
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.setTransform(ratio, 0, 0, ratio, -ratio * left, -ratio * top);
    this.paint(context, scene, this.layout!);
    return canvas;
  }

  /** From the centre of each photograph to a point of the window. */
  private distances(x: number, y: number): number[] {
    const box = this.canvas.getBoundingClientRect();
    return this.layout!.places.map((place) => Math.hypot(x - box.left - place.x, y - box.top - place.y));
  }

  private point(scene: Scene, layout: Layout, side: 0 | 1, index: number): [number, number] {
    const { keypoints } = scene.pictures[side]!;
    return toStage(layout.places[side], side ? scene.turn : 0, keypoints[2 * index], keypoints[2 * index + 1]);
  }

  private paint(context: CanvasRenderingContext2D, scene: Scene, layout: Layout): void {
    const colours = getComputedStyle(this.element);
    const colour = (name: string): string => colours.getPropertyValue(name).trim();
    scene.pictures.forEach((drawn, side) => {
      if (drawn) paintPicture(context, drawn, layout.places[side], side ? scene.turn : 0);
      else paintEmpty(context, layout.places[side], colour("--line"));
    });
    if (!scene.pictures[0] || !scene.pictures[1]) return;
    if (scene.outline) this.paintOutline(context, scene, layout);
    if (scene.matches) this.paintMatches(context, scene, layout, colour("--agree"), colour("--differ"));
    if (scene.look) this.paintLook(context, scene, layout, colour("--found"));
  }

  private paintMatches(
    context: CanvasRenderingContext2D, scene: Scene, layout: Layout, agree: string, differ: string,
  ): void {
    const { first, second, inliers } = scene.matches!;
    const faint = scene.look ? 0.25 : 1;
    const lines = chosen(inliers, MOST_LINES);
    for (const right of [false, true]) {
      context.strokeStyle = context.fillStyle = right ? agree : differ;
      context.lineWidth = right ? 1.2 : 1;
      context.setLineDash(right ? [] : [4, 4]);
      const path = new Path2D();
      for (const k of lines) {
        if (inliers[k] !== right) continue;
        path.moveTo(...this.point(scene, layout, 0, first[k]));
        path.lineTo(...this.point(scene, layout, 1, second[k]));
      }
      context.globalAlpha = faint * (right ? 0.3 : 0.22); // over the photographs, which shall be seen
      context.stroke(path);
      context.save();
      context.clip(this.around(scene, layout), "evenodd");
      context.globalAlpha = faint * (right ? 0.7 : 0.45);
      context.stroke(path);
      context.restore();
      context.setLineDash([]);
      context.globalAlpha = faint;
      for (let k = 0; k < inliers.length; k++) {
        if (inliers[k] !== right) continue;
        for (const [side, index] of [[0, first[k]], [1, second[k]]] as const) {
          const [x, y] = this.point(scene, layout, side, index);
          context.beginPath();
          if (right) context.arc(x, y, 2.4, 0, 2 * Math.PI);
          else context.rect(x - 2, y - 2, 4, 4);
          context.fill();
        }
      }
    }
    context.globalAlpha = 1;
  }

  /** Everything but the photographs. */
  private around(scene: Scene, layout: Layout): Path2D {
    const path = new Path2D();
    path.rect(-1e4, -1e4, 2e4, 2e4);
    for (const side of [0, 1] as const) path.addPath(frame(layout.places[side], side ? scene.turn : 0));
    return path;
  }

  private paintLook(context: CanvasRenderingContext2D, scene: Scene, layout: Layout, colour: string): void {
    const { side, index, neighbours } = scene.look!, other = side ? 0 : 1;
    if (2 * index >= scene.pictures[side]!.keypoints.length) return;
    const [x, y] = this.point(scene, layout, side, index);
    neighbours.forEach((neighbour, rank) => {
      const [px, py] = this.point(scene, layout, other, neighbour.index);
      for (const [style, width] of [["#000a", 5 - rank], [colour, 3 - rank]] as const) {
        context.strokeStyle = style;
        context.lineWidth = Math.max(width, 1);
        context.setLineDash(rank ? [6, 5] : []);
        context.beginPath();
        context.moveTo(x, y);
        context.lineTo(px, py);
        context.stroke();
      }
      context.setLineDash([]);
      ring(context, px, py, 8 - 2 * rank, colour);
    });
    ring(context, x, y, 9, colour);
  }

  /** Where the first photograph lies in the second. */
  private paintOutline(context: CanvasRenderingContext2D, scene: Scene, layout: Layout): void {
    const { width, height } = scene.pictures[0]!.size;
    context.beginPath();
    for (const [x, y] of [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]) {
      context.lineTo(...toStage(layout.places[1], scene.turn, ...project(scene.outline!, x, y)));
    }
    context.closePath();
    context.save();
    context.clip(frame(layout.places[1], scene.turn));
    context.setLineDash([2, 5]);
    context.lineWidth = 2;
    context.strokeStyle = "#fff";
    context.shadowColor = "#000";
    context.shadowBlur = 2;
    context.stroke();
    context.restore();
  }
}

/** At most so many matches, evenly of those that agree and of the others, the best first. */
function chosen(inliers: boolean[], most: number): number[] {
  const all = [...inliers.keys()], right = all.filter((k) => inliers[k]), wrong = all.filter((k) => !inliers[k]);
  const share = Math.round((most * right.length) / Math.max(inliers.length, 1));
  return all.length <= most ? all : [...right.slice(0, share), ...wrong.slice(0, most - share)];
}

/** The border of a photograph. */
function frame(place: Place, turn: number): Path2D {
  const { width, height } = place.size, path = new Path2D();
  for (const [x, y] of [[-0.5, -0.5], [width - 0.5, -0.5], [width - 0.5, height - 0.5], [-0.5, height - 0.5]]) {
    path.lineTo(...toStage(place, turn, x, y));
  }
  path.closePath();
  return path;
}

function paintPicture(context: CanvasRenderingContext2D, drawn: Drawn, place: Place, turn: number): void {
  const width = drawn.size.width * place.scale, height = drawn.size.height * place.scale;
  context.save();
  context.translate(place.x, place.y);
  context.rotate(-turn);
  context.imageSmoothingQuality = "high";
  context.drawImage(drawn.bitmap, -width / 2, -height / 2, width, height);
  context.restore();
}

function paintEmpty(context: CanvasRenderingContext2D, place: Place, colour: string): void {
  const width = place.size.width * place.scale, height = place.size.height * place.scale;
  context.strokeStyle = colour;
  context.setLineDash([6, 6]);
  context.strokeRect(place.x - width / 2, place.y - height / 2, width, height);
  context.setLineDash([]);
}

function ring(context: CanvasRenderingContext2D, x: number, y: number, radius: number, colour: string): void {
  for (const [style, width] of [["#000a", 4.5], [colour, 2.5]] as const) {
    context.strokeStyle = style;
    context.lineWidth = width;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.stroke();
  }
}
