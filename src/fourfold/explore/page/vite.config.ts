import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

export default defineConfig({
  plugins: [svelte()],
  base: "./",
  resolve: {
    alias: {
      $lib: new URL("./src/lib", import.meta.url).pathname,
      $generated: new URL("./src/generated", import.meta.url).pathname,
    },
  },
  build: {
    outDir: "../dist",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: { proxy: { "/api": "http://127.0.0.1:4404" } },
  test: { include: ["src/**/*.test.ts"], environment: "node" },
});
