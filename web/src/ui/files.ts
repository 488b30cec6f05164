/** Photographs of one's own: chosen, dropped or pasted. */

type Open = (place: 0 | 1, file: File) => void;

/** @param placeAt which photograph lies at a point of the window. */
export function listenForFiles(stage: HTMLElement, open: Open, placeAt: (x: number, y: number) => 0 | 1): void {
  for (const place of [0, 1] as const) {
    const input = document.querySelector<HTMLInputElement>(`#file${place}`)!;
    input.addEventListener("change", () => {
      if (input.files?.length) openAll([...input.files], place, open);
      input.value = ""; // the same file may be chosen again
    });
  }
  window.addEventListener("dragover", (event) => {
    event.preventDefault();
    stage.classList.add("over");
  });
  window.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) stage.classList.remove("over");
  });
  window.addEventListener("drop", (event) => {
    event.preventDefault();
    stage.classList.remove("over");
    openAll([...(event.dataTransfer?.files ?? [])], placeAt(event.clientX, event.clientY), open);
  });
  window.addEventListener("paste", (event) => {
    openAll([...(event.clipboardData?.files ?? [])], 1, open);
  });
}

/** Two files are both photographs; of more the first two count. */
function openAll(files: File[], place: 0 | 1, open: Open): void {
  if (files.length === 1) open(place, files[0]);
  else files.slice(0, 2).forEach((file, k) => open(k as 0 | 1, file));
}
