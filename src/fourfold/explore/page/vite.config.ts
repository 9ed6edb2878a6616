import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

/** `--mode report` builds the script and the style of pages that are saved as one file; it comes after the page's own build. */
const saved = {
  outDir: "../dist",
  emptyOutDir: false,
  copyPublicDir: false,
  target: "es2022",
  cssCodeSplit: false,
  rolldownOptions: {
    input: "src/report/main.ts",
    output: {
      format: "iife",
      codeSplitting: false,
      entryFileNames: "report.js",
      assetFileNames: "report.[ext]",
    },
  },
} as const;

export default defineConfig(({ mode }) => ({
  plugins: [svelte()],
  base: "./",
  resolve: {
    alias: {
      $lib: new URL("./src/lib", import.meta.url).pathname,
      $generated: new URL("./src/generated", import.meta.url).pathname,
    },
  },
  build:
    mode === "report"
      ? saved
      : {
          outDir: "../dist",
          emptyOutDir: true,
          target: "es2022",
          assetsInlineLimit: 0,
          modulePreload: { polyfill: false },
        },
  server: { proxy: { "/api": "http://127.0.0.1:4404" } },
  // no test is at the mercy of the machine's load: as long as the suite of Python lets one last
  test: { include: ["src/**/*.test.ts"], environment: "node", testTimeout: 240_000 },
}));
