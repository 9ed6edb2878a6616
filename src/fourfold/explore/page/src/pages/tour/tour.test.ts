import { expect, test } from "vitest";
import type { Found, Parts } from "$lib/api/shown.svelte.ts";
import { numberAt, placeOn } from "$lib/scale.ts";
import { claims } from "./claims.ts";
import {
  beside,
  filled,
  type Guess,
  judged,
  moved,
  PLACES,
  piecesOf,
  type Sentence,
  standing,
} from "./scene.ts";
import { scenes } from "./scenes/index.ts";

const NOTHING: Found<Parts> = {};
/** Names that have a digit: every other number of a sentence comes from an answer. */
const NAMES = /\b(Llama 3 405B|Llama 3|DeepSeek-V3|ZeRO-\d|1F1B|H100|bf16|fp32)(?![\w])/g;
const knob = {
  label: "ranks",
  values: ["2", "4", "8"],
  start: "4",
  written: (value: string) => `${value} x`,
};
const scale = { from: 1, to: 1000, written: String };

function allSentences(): { id: string; sentence: Sentence }[] {
  return [
    ...scenes.flatMap(({ id, sentences, changes }) =>
      [...sentences, ...changes].map((sentence) => ({ id, sentence })),
    ),
    ...claims.flatMap(({ id, sentences }) => sentences.map((sentence) => ({ id, sentence }))),
  ];
}

test("a sentence is read in pieces", () => {
  expect(piecesOf("At {tp} a [mesh](mesh-1) has {n}.", { tp: knob })).toEqual([
    { kind: "text", text: "At " },
    { kind: "knob", name: "tp" },
    { kind: "text", text: " a " },
    { kind: "term", text: "mesh", slug: "mesh-1" },
    { kind: "text", text: " has " },
    { kind: "number", name: "n" },
    { kind: "text", text: "." },
  ]);
  expect(filled("{tp} and {n}", { tp: knob }, { tp: "8" })).toBe("8 x and {n}");
});

test("a knob stands where the address says, and stops at its ends or goes around", () => {
  expect([undefined, "8", "9"].map((stated) => standing(knob, stated))).toEqual(["4", "8", "4"]);
  expect([moved(knob, "4", 5), moved(knob, "4", -5), moved(knob, "8", 1, true)]).toEqual(["8", "2", "2"]);
});

test("a scale of equal factors is read back", () => {
  expect([1, 1000, 5000, 0.1].map((value) => placeOn(scale, value))).toEqual([0, 1, 1, 0]);
  expect(placeOn(scale, 10)).toBeCloseTo(1 / 3, 12);
  for (const value of [1, 2.5, 31, 990]) expect(numberAt(scale, placeOn(scale, value))).toBeCloseTo(value, 6);
});

test("a guess is judged by its factor, or by the word", () => {
  const guess: Guess = { question: "", scale };
  expect(["10", "11", "20", "5", "100000"].map((given) => judged(guess, given, 10))).toEqual([
    "close",
    "close",
    "2 times too much",
    "2 times too little",
    "over a thousand times too much",
  ]);
  expect(judged({ question: "", options: [] }, "a", "a")).toBe("right");
});

test("scenes follow one another, and each is whole", () => {
  expect(scenes.length).toBeGreaterThanOrEqual(12);
  expect(new Set(scenes.map(({ id }) => id)).size).toBe(scenes.length);
  expect(beside(scenes, scenes[0]?.id ?? "", 1)).toBe(scenes[1]);
  expect(beside(scenes, scenes[0]?.id ?? "", -1)).toBeUndefined();
  for (const { id, knobs, place, sentences, changes, guess } of scenes) {
    expect(PLACES, id).toContain(place);
    expect(sentences.length, id).toBeGreaterThanOrEqual(3);
    expect(sentences.length, id).toBeLessThanOrEqual(5);
    expect(changes.length, id).toBeGreaterThan(0);
    expect(guess.scale === undefined, id).toBe(guess.options !== undefined);
    for (const each of Object.values(knobs)) expect(each.values, id).toContain(each.start);
  }
  expect(new Set(scenes.map(({ place }) => place))).toEqual(new Set(PLACES));
});

test("every scene has a knob in its text that changes a request", () => {
  for (const { id, knobs, asks, sentences, changes } of scenes) {
    const text = [...sentences, ...changes].map((each) => each.text).join(" ");
    const start = Object.fromEntries(Object.entries(knobs).map(([name, each]) => [name, each.start]));
    const answers = { roofline: { attention: {} }, block: { ranks: [0, 1], steps: [] }, first: {} } as never;
    const asked = (values: Record<string, string>): string =>
      JSON.stringify(asks(values), (_, each) => (typeof each === "function" ? each(answers) : each));
    for (const [name, each] of Object.entries(knobs)) {
      expect(text, id).toContain(`{${name}}`);
      const other = each.values.find((value) => value !== each.start) ?? "";
      const shows = asked({ ...start, [name]: other }) !== asked(start);
      // the one that chooses between two drawings asks for both
      expect(shows || name === "where", `${id}.${name}`).toBe(true);
    }
  }
});

test("no sentence has a number of its own", () => {
  for (const { id, sentence } of allSentences())
    expect(sentence.text.replace(NAMES, "").replace(/\{\w+\}|\]\([\w-]+\)/g, ""), id).not.toMatch(/\d/);
  for (const { id, guess } of scenes) expect(guess.question.replace(NAMES, ""), id).not.toMatch(/\d/);
});

test("no number is there before its answer", () => {
  for (const { id, numbers, truth, knobs } of scenes) {
    const values = Object.fromEntries(Object.entries(knobs).map(([name, each]) => [name, each.start]));
    expect(truth(NOTHING, values), id).toBeUndefined();
    expect(
      Object.values(numbers(NOTHING, values)).filter((each) => each !== undefined),
      id,
    ).toEqual([]);
  }
  for (const { id, numbers, bars, verdict } of claims) {
    expect(bars(NOTHING), id).toEqual([]);
    expect(verdict(NOTHING), id).toBeUndefined();
    expect(
      Object.values(numbers(NOTHING)).filter((each) => each !== undefined),
      id,
    ).toEqual([]);
  }
});

test("there are some twenty claims, each with what is so and where it is right", () => {
  expect(claims.length).toBeGreaterThanOrEqual(20);
  expect(new Set(claims.map(({ id }) => id)).size).toBe(claims.length);
  for (const { id, sentences } of claims) expect(sentences.length, id).toBe(2);
});
