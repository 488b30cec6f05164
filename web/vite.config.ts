import { defineConfig } from "vitest/config";

export default defineConfig({
  base: "./", // so that the folder may lie anywhere on a host
  build: { outDir: "../src/steerers/web", emptyOutDir: true, target: "es2022", chunkSizeWarningLimit: 1000 },
  worker: { format: "es" },
  test: { include: ["test/*.test.ts"] },
});
