//! What is known of a tool's definition.

use serde::Serialize;

/// See the module's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DefinitionStatus {
    /// Compiled into the gateway.
    Module,
    /// A reviewer accepted exactly this definition.
    Accepted,
    /// As it was when its server was first connected; nobody has accepted or refused it.
    Seen,
    /// Came later, and nobody has accepted it.
    New,
    /// Another than the one that was accepted or first seen, or the one that was accepted, from another server.
    Changed,
}

impl DefinitionStatus {
    /// Whether what the definition says of itself counts; `trusted`: the operator vouches for what its server says.
    #[must_use]
    pub const fn trusts_annotations(self, trusted: bool) -> bool {
        match self {
            Self::Module | Self::Accepted => true,
            Self::Seen => trusted,
            Self::New | Self::Changed => false,
        }
    }

    /// What it waits to be accepted for.
    #[must_use]
    pub const fn mark(self) -> Option<AcceptanceMark> {
        match self {
            Self::New => Some(AcceptanceMark::New),
            Self::Changed => Some(AcceptanceMark::Changed),
            Self::Module | Self::Accepted | Self::Seen => None,
        }
    }
}

/// Why a tool is reviewed whatever else is said of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum AcceptanceMark {
    #[serde(rename = "TOOL_NEW")]
    New,
    #[serde(rename = "TOOL_CHANGED")]
    Changed,
}

impl AcceptanceMark {
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::New => "TOOL_NEW",
            Self::Changed => "TOOL_CHANGED",
        }
    }

    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::New => "the tool is new and nobody has accepted it yet",
            Self::Changed => {
                "the tool's definition, or what is behind its server's name, changed and nobody has accepted that yet"
            }
        }
    }
}
