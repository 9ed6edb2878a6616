import "$generated/palette.css";
import "./app.css";
import { mount } from "svelte";
import App from "./App.svelte";
import { catalog } from "./lib/api/catalog.svelte.ts";
import { theme } from "./lib/state/theme.svelte.ts";

theme.apply();
void catalog.load();
const target = document.getElementById("app");
if (target) mount(App, { target });
