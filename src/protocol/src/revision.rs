//! The protocol revisions that the gateway serves, and the table of the differences between their messages.
//!
//! To add a revision:
//! 1. Add its line to `revisions!` below, in order of date, and move `NEWEST_LEGACY` or `MODERN` to it. Where a message
//!    differs, add a rule to [`Rules`] with a row in the test `table_matches_schemas`, which does not compile without a
//!    column for the revision. `only_dates_of_revisions_parse` finds a forgotten step.
//! 2. Add its methods to `request.rs`. The test `every_method_in_every_revision` does not compile without a column.
//! 3. Make `src/upstream/src/link/detect.rs` (stateless) or `src/upstream/src/link/handshake.rs` (handshake) detect
//!    servers of the new revision and of all earlier ones. `server_of_any_single_revision_is_detected` checks this.
//! 4. Where a message differs, apply the rules in the code that writes the message: definitions in
//!    `src/routing/src/table/revision_filter.rs` (`revision_filter_keeps_supported_members_verbatim` does not compile
//!    without the revision), calls and results in `src/bridge`. Do not compare revisions elsewhere, except for
//!    capabilities in `negotiate.rs`.
//! 5. Add its scenarios to `tests/conformance/expectations.mjs`. `official_suite_covers_each_revision` checks this.

/// The way in which a client starts: with an `initialize` handshake, or with metadata in every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Era {
    /// The handshake era, 2024-11-05 to 2025-11-25.
    Legacy,
    /// The stateless era, 2026-07-28.
    Modern,
}

/// The properties of messages in one revision. Each row was checked against that revision's `schema.ts`.
#[derive(Debug)]
pub struct Rules {
    pub era: Era,
    /// JSON-RPC batch arrays are accepted (2025-03-26/basic/index, "Batching"). 2024-11-05 is silent and inherits them
    /// from JSON-RPC 2.0; 2025-06-18/changelog removed them.
    pub batches: bool,
    /// An error for a request without a readable id carries `"id": null`; otherwise the member is absent. JSON-RPC 2.0
    /// section 5 requires null; since 2025-11-25 the schema has an optional id that is never null.
    pub null_id_on_unreadable: bool,
    /// Invalid tool arguments give an `isError` result instead of a `-32602` error (2025-11-25/changelog).
    pub invalid_arguments_are_tool_errors: bool,
    /// `structuredContent`, `outputSchema`, `title`, `resource_link`, `annotations.lastModified`, completion
    /// context and `_meta` on definitions and contents exist (2025-06-18).
    pub structured_content: bool,
    /// `outputSchema` must have `"type": "object"` at its root and `structuredContent` must be an object
    /// (2025-06-18 and 2025-11-25; any schema and any value later).
    pub structured_object_only: bool,
    /// Tool annotations, audio content and `progress.message` exist (2025-03-26).
    pub annotations: bool,
    /// The `completions` capability exists (2025-03-26); `completion/complete` itself is older.
    pub completions_capability: bool,
    /// `icons`, and `description` and `websiteUrl` of an implementation, exist (2025-11-25).
    pub icons: bool,
    /// Every result carries `resultType`, and `serverInfo` in its `_meta`; lists and reads carry cache hints.
    pub result_type: bool,
    /// HTTP requests after the handshake carry `MCP-Protocol-Version` (2025-06-18/basic/transports).
    pub version_header: bool,
    /// An SSE stream opens with an event that has an id and no data (2025-11-25/basic/transports).
    pub sse_priming: bool,
    /// The numeric code of a missing resource: -32002 (legacy) or -32602 (modern).
    pub resource_not_found: i64,
}

impl Revision {
    /// The revision offered to an `initialize` with an unknown version (2025-11-25/basic/lifecycle).
    pub const NEWEST_LEGACY: Self = Self::V2025_11_25;
    pub const MODERN: Self = Self::V2026_07_28;

    /// Returns the revision of that date, if the gateway serves it.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|r| r.as_str() == text)
    }

    #[must_use]
    pub fn era(self) -> Era {
        self.rules().era
    }
}

macro_rules! revisions {
    ($($variant:ident = $date:literal, $rules:expr;)*) => {
        /// A protocol revision that the gateway serves. Revisions are ordered by date.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Revision { $($variant,)* }

        impl Revision {
            /// All revisions, oldest first.
            pub const ALL: [Self; [$($date),*].len()] = [$(Self::$variant,)*];

            /// Returns the date as it is written on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $date,)* }
            }

            /// Returns the rules of this revision.
            #[must_use]
            pub const fn rules(self) -> &'static Rules {
                match self { $(Self::$variant => &$rules,)* }
            }
        }
    };
}

#[rustfmt::skip]
revisions! {
    V2024_11_05 = "2024-11-05", Rules { era: Era::Legacy, batches: true,  null_id_on_unreadable: true,  invalid_arguments_are_tool_errors: false, structured_content: false, structured_object_only: false, annotations: false, completions_capability: false, icons: false, result_type: false, version_header: false, sse_priming: false, resource_not_found: -32002 };
    V2025_03_26 = "2025-03-26", Rules { era: Era::Legacy, batches: true,  null_id_on_unreadable: true,  invalid_arguments_are_tool_errors: false, structured_content: false, structured_object_only: false, annotations: true,  completions_capability: true,  icons: false, result_type: false, version_header: false, sse_priming: false, resource_not_found: -32002 };
    V2025_06_18 = "2025-06-18", Rules { era: Era::Legacy, batches: false, null_id_on_unreadable: true,  invalid_arguments_are_tool_errors: false, structured_content: true,  structured_object_only: true,  annotations: true,  completions_capability: true,  icons: false, result_type: false, version_header: true,  sse_priming: false, resource_not_found: -32002 };
    V2025_11_25 = "2025-11-25", Rules { era: Era::Legacy, batches: false, null_id_on_unreadable: false, invalid_arguments_are_tool_errors: true,  structured_content: true,  structured_object_only: true,  annotations: true,  completions_capability: true,  icons: true,  result_type: false, version_header: true,  sse_priming: true,  resource_not_found: -32002 };
    V2026_07_28 = "2026-07-28", Rules { era: Era::Modern, batches: false, null_id_on_unreadable: false, invalid_arguments_are_tool_errors: true,  structured_content: true,  structured_object_only: false, annotations: true,  completions_capability: true,  icons: true,  result_type: true,  version_header: true,  sse_priming: false, resource_not_found: -32602 };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates a rule for each revision, oldest first.
    fn column(rule: fn(&Rules) -> bool) -> [bool; Revision::ALL.len()] {
        Revision::ALL.map(|revision| rule(revision.rules()))
    }

    #[test]
    fn only_dates_of_revisions_parse() {
        for revision in Revision::ALL {
            assert_eq!(Revision::parse(revision.as_str()), Some(revision));
        }
        for text in ["", "2025-11-26", "2025-11-25 ", "2026-07-28-draft", "draft"] {
            assert_eq!(Revision::parse(text), None, "{text}");
        }
        let newest = |era| Revision::ALL.into_iter().rfind(|revision| revision.era() == era);
        assert_eq!(newest(Era::Legacy), Some(Revision::NEWEST_LEGACY));
        assert_eq!(newest(Era::Modern), Some(Revision::MODERN));
        assert!(Revision::ALL.windows(2).all(|pair| pair[0] < pair[1] && pair[0].as_str() < pair[1].as_str()));
    }

    /// The official suite starts with 2025-11-25.
    #[test]
    fn official_suite_covers_each_revision() {
        let expected = include_str!("../../../tests/conformance/expectations.mjs");
        let required = expected.split_once("export const required = {").unwrap().1.split_once("};").unwrap().0;
        for revision in Revision::ALL.into_iter().filter(|revision| *revision >= Revision::V2025_11_25) {
            assert!(required.contains(&format!("'{}': [", revision.as_str())), "{revision:?}");
        }
    }

    #[test]
    fn table_matches_schemas() {
        let (no, yes) = (false, true);
        assert_eq!(column(|r| r.era == Era::Modern), [no, no, no, no, yes]);
        assert_eq!(column(|r| r.batches), [yes, yes, no, no, no]);
        assert_eq!(column(|r| r.null_id_on_unreadable), [yes, yes, yes, no, no]);
        assert_eq!(column(|r| r.invalid_arguments_are_tool_errors), [no, no, no, yes, yes]);
        assert_eq!(column(|r| r.structured_content), [no, no, yes, yes, yes]);
        assert_eq!(column(|r| r.structured_object_only), [no, no, yes, yes, no]);
        assert_eq!(column(|r| r.annotations), [no, yes, yes, yes, yes]);
        assert_eq!(column(|r| r.completions_capability), [no, yes, yes, yes, yes]);
        assert_eq!(column(|r| r.icons), [no, no, no, yes, yes]);
        assert_eq!(column(|r| r.result_type), [no, no, no, no, yes]);
        assert_eq!(column(|r| r.version_header), [no, no, yes, yes, yes]);
        assert_eq!(column(|r| r.sse_priming), [no, no, no, yes, no]);
        assert_eq!(column(|r| r.resource_not_found == -32602), [no, no, no, no, yes]);
    }
}
