//! The five protocol revisions and the one table of what differs between them.

/// A protocol revision that the gateway serves, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Revision {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
}

/// How a client opens: with an `initialize` handshake, or with every request describing itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Era {
    /// 2024-11-05 to 2025-11-25.
    Legacy,
    /// 2026-07-28.
    Modern,
}

/// What a message looks like in one revision.
#[derive(Debug)]
pub struct Rules {
    pub era: Era,
    /// JSON-RPC batch arrays are accepted (2024-11-05, 2025-03-26).
    pub batches: bool,
    /// An error whose request id could not be read carries `"id": null` (else the member is left out).
    pub null_id_on_unreadable: bool,
    /// Bad tool arguments are an `isError` result (else a `-32602` error).
    pub invalid_arguments_are_tool_errors: bool,
    /// `structuredContent`, `outputSchema`, `title` and `resource_link` exist (2025-06-18).
    pub structured_content: bool,
    /// Tool annotations, audio content and `progress.message` exist (2025-03-26).
    pub annotations: bool,
    /// The `completions` capability exists (2025-03-26).
    pub completions_capability: bool,
    /// `icons` exist (2025-11-25).
    pub icons: bool,
    /// Every result carries `resultType`, and `serverInfo` in its `_meta`; lists and reads carry cache hints.
    pub result_type: bool,
    /// The numeric code of a missing resource: -32002 (legacy) or -32602 (modern).
    pub resource_not_found: i64,
}

impl Revision {
    /// All revisions, oldest first.
    pub const ALL: [Self; 5] =
        [Self::V2024_11_05, Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25, Self::V2026_07_28];
    /// What an `initialize` with an unknown version is answered with (2025-11-25/basic/lifecycle).
    pub const NEWEST_LEGACY: Self = Self::V2025_11_25;
    pub const MODERN: Self = Self::V2026_07_28;

    /// The date string that stands on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// The revision of that date string, if the gateway serves it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|r| r.as_str() == text)
    }

    #[must_use]
    pub fn era(self) -> Era {
        self.rules().era
    }

    /// What differs in this revision.
    #[must_use]
    pub const fn rules(self) -> &'static Rules {
        match self {
            Self::V2024_11_05 => &TABLE[0],
            Self::V2025_03_26 => &TABLE[1],
            Self::V2025_06_18 => &TABLE[2],
            Self::V2025_11_25 => &TABLE[3],
            Self::V2026_07_28 => &TABLE[4],
        }
    }
}

#[rustfmt::skip]
static TABLE: [Rules; 5] = [
    Rules { era: Era::Legacy, batches: true,  null_id_on_unreadable: true,  invalid_arguments_are_tool_errors: false, structured_content: false, annotations: false, completions_capability: false, icons: false, result_type: false, resource_not_found: -32002 },
    Rules { era: Era::Legacy, batches: true,  null_id_on_unreadable: true,  invalid_arguments_are_tool_errors: false, structured_content: false, annotations: true,  completions_capability: true,  icons: false, result_type: false, resource_not_found: -32002 },
    Rules { era: Era::Legacy, batches: false, null_id_on_unreadable: true,  invalid_arguments_are_tool_errors: false, structured_content: true,  annotations: true,  completions_capability: true,  icons: false, result_type: false, resource_not_found: -32002 },
    Rules { era: Era::Legacy, batches: false, null_id_on_unreadable: false, invalid_arguments_are_tool_errors: true,  structured_content: true,  annotations: true,  completions_capability: true,  icons: true,  result_type: false, resource_not_found: -32002 },
    Rules { era: Era::Modern, batches: false, null_id_on_unreadable: false, invalid_arguments_are_tool_errors: true,  structured_content: true,  annotations: true,  completions_capability: true,  icons: true,  result_type: true,  resource_not_found: -32602 },
];
