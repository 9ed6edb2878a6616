/** The catalog, asked for once. */

import type { CatalogDocument, KeyDocument, TermDocument } from "$generated/documents.ts";
import { ask, messageOf } from "./client.ts";

class Catalog {
  document = $state.raw<CatalogDocument | undefined>();
  error = $state("");

  async load(): Promise<void> {
    try {
      this.document = await ask("catalog", {});
    } catch (error) {
      this.error = messageOf(error);
    }
  }

  /** An entry of the glossary, by its anchor. */
  term(slug: string): TermDocument | undefined {
    return this.document?.glossary.find((each) => each.slug === slug);
  }

  /** A key of the run file. */
  key(name: string): KeyDocument | undefined {
    return this.document?.keys.find((each) => each.key === name);
  }
}

export const catalog = new Catalog();
