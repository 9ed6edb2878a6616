import { expect, test } from "vitest";
import { writeHash } from "$lib/state/url.ts";
import { classText, learnerOf, readClass, readLinks, withLearners } from "./class.ts";

const ADA = learnerOf("Ada; =&é", {
  a: { won: true, guess: null },
  b: { won: true, shown: true },
  c: { hints: 1 },
  d: {},
});
const BO = learnerOf("Bo", {});

test("a class is read back as it was written", () => {
  expect(ADA.marks).toEqual({ a: "won", b: "shown", c: "tried" });
  expect(readClass(classText([ADA, BO]))).toEqual([ADA, BO]);
  expect(readClass("")).toEqual([]);
  expect(readClass("x=a:best,B:won,c:won;nonsense;%=")).toEqual([
    { name: "x", marks: { c: "won" } },
    { name: "%", marks: {} },
  ]);
});

test("links come with words between, and a later result takes the place of an earlier", () => {
  const link = (learner: typeof ADA) =>
    `http://x/${writeHash({ page: "tasks", params: { "tasks.class": classText([learner]) } })}`;
  const later = { ...BO, marks: { a: "won" as const } };
  expect(readLinks(`mine: ${link(ADA)}\n${link(BO)} http://y/#/tasks none`)).toEqual([ADA, BO]);
  expect(withLearners([ADA, BO], [later])).toEqual([ADA, later]);
});

test("an address that names a learner twice has one", () => {
  expect(withLearners([], readClass("x=a:won;x=b:tried"))).toEqual([{ name: "x", marks: { b: "tried" } }]);
});
