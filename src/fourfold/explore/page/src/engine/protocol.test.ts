import { expect, test } from "vitest";
import { requestText } from "./protocol.ts";

test("a request has one text, in whatever order its keys come", () => {
  const one = requestText("simulate", {
    run: "a",
    overrides: { "layout.tp": 2, "layout.pp": 1 },
    tokens: undefined,
  });
  expect(one).toBe('["simulate",{"overrides":{"layout.pp":1,"layout.tp":2},"run":"a"}]');
  expect(requestText("simulate", { overrides: { "layout.pp": 1, "layout.tp": 2 }, run: "a" })).toBe(one);
  expect(requestText("plan", { explain: [{ b: 1, a: 2 }] })).toBe('["plan",{"explain":[{"a":2,"b":1}]}]');
});
