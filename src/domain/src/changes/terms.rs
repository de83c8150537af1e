//! The terms that a rule sets for the review of a call. They are copied into the change when it is proposed, so that
//! later configurations do not affect it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};
use utoipa::ToSchema;

use super::{CertainFailure, Escalation, PreviewNote};
use crate::principal::Principal;

/// The state of a change after nobody decided on it in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantArray, ToSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum OnExpiry {
    /// The change is `expired`, and the agent may propose it again.
    #[default]
    Expire,
    /// The change is `rejected` by the system.
    Reject,
}

/// The answer to the caller of a reviewed tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantArray, ToSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum OnReview {
    /// The call returns at once and reports that the change is pending.
    #[default]
    Return,
    /// The call stays open for [`Terms::hold_for`] and returns the decision if there is one.
    Hold,
    /// The call returns a task. Clients without task support cannot propose.
    Task,
}

/// The fate of a call whose preview shows that it must fail.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    IntoStaticStr,
    VariantArray,
    ToSchema,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum OnFailedPreview {
    /// The call is returned to its agent with the reason, even if the preview read what the agent may not read.
    Return,
    /// The call is returned to its agent with the reason if the agent may read what the preview read. Otherwise the
    /// call is reviewed.
    #[default]
    Readable,
    /// The call is reviewed.
    Review,
}

impl OnFailedPreview {
    /// Returns `true` if the call is returned to its agent instead of being reviewed.
    pub const fn returns(self, preview: &PreviewNote) -> bool {
        match self {
            Self::Return => preview.must_fail.is_some(),
            Self::Readable => matches!(preview.must_fail, Some(CertainFailure::Readable)),
            Self::Review => false,
        }
    }
}

/// States whether reviewers may edit the arguments, and who may then approve them.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    IntoStaticStr,
    VariantArray,
    ToSchema,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Editing {
    /// Every reviewer may approve. Editors may not approve if more than one approval is required.
    #[default]
    Allowed,
    /// Every reviewer except the editors may approve.
    #[serde(rename = "other")]
    #[strum(serialize = "other")]
    NeedsOtherApprover,
    /// Nobody may edit the arguments.
    Forbidden,
}

/// The tolerated difference between the clocks of an identity provider and the gateway, in seconds.
const MAX_SKEW: i64 = 60;

/// The sign-in with the identity provider that a decision requires.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SignInTerms {
    /// The longest time between the sign-in and the decision, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<u64>,
    /// The sufficient kinds of authentication (`acr`). Empty means every kind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub acr: Vec<String>,
}

impl SignInTerms {
    /// Returns `true` if the principal signed in recently and strongly enough. Keys have no sign-in.
    pub fn admits(&self, principal: &Principal, now: Timestamp) -> bool {
        let claims = principal.claims.as_deref();
        let (auth_time, acr) = claims.map_or((None, None), |claims| (claims.auth_time, claims.acr.as_deref()));
        self.admits_time(auth_time, now) && self.admits_acr(acr)
    }

    /// Returns `true` if a sign-in at this second is recent enough.
    pub fn admits_time(&self, auth_time: Option<i64>, now: Timestamp) -> bool {
        let Some(max_age) = self.max_age else { return true };
        let max_age = i64::try_from(max_age).unwrap_or(i64::MAX).saturating_add(MAX_SKEW);
        auth_time.is_some_and(|at| now.as_second().saturating_sub(at) <= max_age)
    }

    /// Returns `true` if this kind of authentication suffices.
    pub fn admits_acr(&self, acr: Option<&str>) -> bool {
        self.acr.is_empty() || acr.is_some_and(|acr| self.acr.iter().any(|sufficient| sufficient == acr))
    }
}

impl std::fmt::Display for SignInTerms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a sign-in with the identity provider")?;
        if let Some(max_age) = self.max_age {
            write!(f, " at most {max_age} s ago")?;
        }
        if !self.acr.is_empty() {
            write!(f, " by {}", self.acr.join(" or "))?;
        }
        Ok(())
    }
}

/// The terms of a review. Times are in whole seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Terms {
    /// Roles and groups (`policy.groups`) whose members may decide. Empty means every reviewer.
    #[schema(required)]
    pub reviewers: Vec<String>,
    /// The number of required approvals, each by another owner; 0 for a step of a plan that policy allows.
    #[schema(required)]
    pub quorum: u32,
    /// Time until the change expires, if it is not `changes.expire_after`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_after: Option<u64>,
    #[schema(required)]
    pub on_expiry: OnExpiry,
    /// A decision requires a comment.
    #[schema(required)]
    pub require_comment: bool,
    #[schema(required)]
    pub edit: Editing,
    #[schema(required)]
    pub on_review: OnReview,
    /// The longest time that a held call stays open.
    #[schema(required)]
    pub hold_for: u64,
    /// The time during which an approval can be undone before the change runs.
    #[schema(required)]
    pub undo_for: u64,
    /// Only changes whose preview shows live state can be approved, and steps of plans that await results of earlier steps.
    // `PreviewNote::permits_approval` decides.
    #[schema(required)]
    pub preview_required: bool,
    #[schema(required)]
    pub on_failed_preview: OnFailedPreview,
    /// Clients that can show a URL are asked to open the page of the change.
    #[schema(required)]
    pub open_page: bool,
    /// Questions of the tool during the approved call are passed to the proposer's client; otherwise they are declined.
    /// The answers are input that no reviewer has seen.
    #[schema(required)]
    pub questions: bool,
    /// A person who signed in with the identity provider may approve what an agent proposed with an access token in their
    /// name.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub own_agents: bool,
    /// The sign-in with the identity provider that an approval, an edit and the settling of an outcome require.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sign_in: Option<SignInTerms>,
    /// Further reviewers, who may decide if nobody has for some time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escalate: Option<Escalation>,
    /// Time after which an undecided change is announced again, and again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remind: Option<u64>,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            reviewers: Vec::new(),
            quorum: 1,
            expire_after: None,
            on_expiry: OnExpiry::Expire,
            require_comment: false,
            edit: Editing::Allowed,
            on_review: OnReview::Return,
            hold_for: 45,
            undo_for: 0,
            preview_required: false,
            on_failed_preview: OnFailedPreview::Readable,
            open_page: false,
            questions: false,
            own_agents: false,
            sign_in: None,
            escalate: None,
            remind: None,
        }
    }
}

impl Terms {
    /// Returns `true` if a single approval suffices and requires neither a look at the preview nor a sign-in for each call.
    pub const fn single_approval_suffices(&self) -> bool {
        self.quorum <= 1 && !self.preview_required && self.sign_in.is_none()
    }

    /// Returns `true` if approvals by editors of the arguments count.
    pub const fn editors_may_approve(&self) -> bool {
        self.quorum < 2 && matches!(self.edit, Editing::Allowed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::principal::Claims;

    #[test]
    fn sign_in_terms_admit_recent_and_strong_sign_ins() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let admits = |terms: &SignInTerms, auth_time: Option<i64>, acr: Option<&str>| {
            let claims = Claims { auth_time, acr: acr.map(str::to_owned), ..Claims::default() };
            terms.admits(&Principal { claims: Some(Arc::new(claims)), ..Principal::local_agent() }, now)
        };
        let recent = SignInTerms { max_age: Some(300), acr: Vec::new() };
        for (auth_time, admitted) in
            [(1_000_000, true), (1_000_900, true), (999_640, true), (999_639, false), (0, false)]
        {
            assert_eq!(admits(&recent, Some(auth_time), None), admitted, "{auth_time}");
        }
        assert!(!admits(&recent, None, Some("mfa")) && !recent.admits(&Principal::local_agent(), now));
        let strong = SignInTerms { max_age: None, acr: vec!["mfa".into(), "phr".into()] };
        assert!(admits(&strong, None, Some("phr")) && !admits(&strong, Some(1_000_000), Some("MFA")));
        assert!(!admits(&strong, Some(1_000_000), None) && !strong.admits(&Principal::local_agent(), now));
        let recent_and_strong = SignInTerms { max_age: Some(300), ..strong };
        assert!(admits(&recent_and_strong, Some(1_000_000), Some("mfa")));
        assert!(
            !admits(&recent_and_strong, Some(1_000_000), None) && !admits(&recent_and_strong, Some(0), Some("mfa"))
        );
        assert_eq!(
            recent_and_strong.to_string(),
            "a sign-in with the identity provider at most 300 s ago by mfa or phr"
        );
        let endless = SignInTerms { max_age: Some(u64::MAX), acr: Vec::new() };
        assert!(admits(&endless, Some(0), None) && !admits(&endless, None, None));
    }

    #[test]
    fn terms_without_sign_in_have_the_earlier_json() {
        let json = serde_json::to_string(&Terms::default()).unwrap();
        assert!(!json.contains("signIn"), "{json}");
        let sign_in = Some(SignInTerms { max_age: Some(300), acr: Vec::new() });
        let terms = Terms { sign_in, ..Terms::default() };
        let json = serde_json::to_string(&terms).unwrap();
        assert!(json.contains(r#""signIn":{"maxAge":300}"#), "{json}");
        assert_eq!(serde_json::from_str::<Terms>(&json).unwrap(), terms);
    }

    #[test]
    fn editor_may_approve_if_allowed_and_one_approval_suffices() {
        let counts = |edit, quorum| Terms { edit, quorum, ..Terms::default() }.editors_may_approve();
        assert!(counts(Editing::Allowed, 1) && !counts(Editing::Allowed, 2) && !counts(Editing::NeedsOtherApprover, 1));
    }
}
