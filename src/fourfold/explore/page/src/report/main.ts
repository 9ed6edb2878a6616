import "$generated/palette.css";
import "../app.css";
import { mount } from "svelte";
import { theme } from "../lib/state/theme.svelte.ts";
import SavedPage from "./SavedPage.svelte";

theme.apply();
const target = document.getElementById("app");
if (target) mount(SavedPage, { target });
