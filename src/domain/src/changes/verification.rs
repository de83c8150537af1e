//! The verification of an applied change: its target is read again after the run and compared with what was approved.
//! It never alters the state of the change.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};
use utoipa::ToSchema;

use super::{Change, Diff};

/// The result of a comparison of the target after the run with what was approved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantArray, ToSchema)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum VerificationOutcome {
    /// The target has not been read yet. This is final if the gateway ends before it reads the target.
    NotRead,
    /// The target is as approved.
    Matches,
    /// The target differs from what was approved.
    Differs,
    /// The target could not be read or compared.
    Unreadable,
}

impl VerificationOutcome {
    pub const VARIANTS: &[Self] = <Self as VariantArray>::VARIANTS;

    /// Returns the name in JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl Change {
    /// Returns `true` if the target differed after the run from what was approved.
    pub fn differs_from_approval(&self) -> bool {
        self.verification.as_ref().is_some_and(|verification| verification.verified == VerificationOutcome::Differs)
    }
}

/// The verification of an applied change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Verification {
    pub verified: VerificationOutcome,
    /// The reason why the target is unreadable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The differences, from what was approved (`before`) to what is there (`after`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<Diff>,
}

impl Verification {
    /// Creates the verification of a change whose target is about to be read.
    pub const fn not_read() -> Self {
        Self { verified: VerificationOutcome::NotRead, reason: None, diff: None }
    }

    pub fn unreadable(reason: impl Into<String>) -> Self {
        Self { verified: VerificationOutcome::Unreadable, reason: Some(reason.into()), diff: None }
    }

    /// Creates the verification with these differences; without any, the target matches.
    pub fn from_diff(diff: Diff) -> Self {
        if diff.fields.is_empty() {
            return Self { verified: VerificationOutcome::Matches, reason: None, diff: None };
        }
        Self { verified: VerificationOutcome::Differs, reason: None, diff: Some(diff) }
    }

    /// Describes the result in one line.
    pub fn describe(&self) -> Cow<'static, str> {
        match (self.verified, &self.reason) {
            (VerificationOutcome::NotRead, _) => {
                "Not read back yet; the gateway tries it once, right after the run".into()
            }
            (VerificationOutcome::Matches, _) => "Read back: as approved".into(),
            (VerificationOutcome::Differs, _) => "Read back: differs from what was approved".into(),
            (VerificationOutcome::Unreadable, None) => "Could not be read back".into(),
            (VerificationOutcome::Unreadable, Some(reason)) => format!("Could not be read back: {reason}").into(),
        }
    }

    /// Returns the verification without reason and differences, which may contain texts of the target.
    pub const fn without_details(&self) -> Self {
        Self { verified: self.verified, reason: None, diff: None }
    }
}
