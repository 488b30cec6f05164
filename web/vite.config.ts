import { defineConfig } from "vitest/config";

export default defineConfig({
  base: "./", // so that the folder may lie anywhere on a host
  publicDir: "static",
  // onnxruntime's WebAssembly stays in files of its own, of which a browser loads the one that it can use.
  resolve: { conditions: ["onnxruntime-web-use-extern-wasm", "module", "browser", "development|production"] },
  build: { outDir: "../src/steerers/web", emptyOutDir: true, target: "es2022", assetsInlineLimit: 0 },
  worker: { format: "es" },
  test: { include: ["test/*.test.ts"], testTimeout: 120_000 },
});
