//! The tokens of an account, as they are stored sealed.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{
    failure::ConsentReason,
    oauth::{
        MAX_SCOPES, discovery::DiscoveredResource, dpop::DpopKey, join_scopes, registration::Registration,
        token::TokenResponse,
    },
};

/// The remaining lifetime at which a token is refreshed. For a short-lived token, it is a tenth of the whole lifetime.
const REFRESH_MARGIN: SignedDuration = SignedDuration::from_secs(60);
/// The time after which a step-up is forgotten.
const STEP_UP_LIFETIME: SignedDuration = SignedDuration::from_hours(1);
/// The maximum number of bytes of the scopes of a step-up, which the cookie of a consent must hold.
const MAX_STEP_UP_LEN: usize = 1024;
/// The age below which a refused token is not replaced, because the next one would be refused as well.
const MIN_AGE_TO_REPLACE: SignedDuration = SignedDuration::from_secs(30);

/// The tokens of an account, with what a refresh needs. There is no `Debug`, because a token must not get into a
/// log.
#[derive(Clone, Serialize, Deserialize)]
pub struct Tokens {
    pub access_token: String,
    pub is_dpop: bool,
    pub received_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub refresh_token: Option<String>,
    pub scopes: Vec<String>,
    #[serde(flatten)]
    pub origin: TokenOrigin,
    pub step_up: Option<StepUp>,
    /// The reason why the tokens can no longer be refreshed, if there is one.
    #[serde(rename = "ended")]
    pub end_reason: Option<ConsentReason>,
    /// The reason why the access token must no longer be used, if there is one.
    #[serde(rename = "refused")]
    pub refusal_reason: Option<ConsentReason>,
}

/// A demand of the server for more scopes than the token has (2026-07-28/basic/authorization, "Step-Up Authorization
/// Flow").
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepUp {
    /// The scopes of all challenges.
    #[serde(rename = "wanted")]
    pub scopes: Vec<String>,
    /// The time of the first challenge.
    pub since: Timestamp,
    /// The number of consents since then. The server may have been satisfied by the last one.
    pub consents: u32,
}

/// The authorization server, the client and the request from which tokens come.
#[derive(Clone, Serialize, Deserialize)]
pub struct TokenOrigin {
    pub discovered: DiscoveredResource,
    /// The client to which the tokens were issued.
    pub registration: Registration,
    /// The scopes that were requested. An authorization server may grant fewer.
    #[serde(rename = "requested")]
    pub requested_scopes: Vec<String>,
    /// The key to which the tokens are bound.
    pub dpop_key: Option<DpopKey>,
}

impl Tokens {
    pub fn new(answer: TokenResponse, origin: TokenOrigin, now: Timestamp) -> Self {
        Self {
            access_token: answer.access_token,
            is_dpop: answer.is_dpop,
            received_at: now,
            expires_at: answer.expires_at,
            refresh_token: answer.refresh_token,
            scopes: answer.scopes.unwrap_or_else(|| origin.requested_scopes.clone()),
            origin,
            step_up: None,
            end_reason: None,
            refusal_reason: None,
        }
    }

    /// Returns the tokens after a refresh. The old refresh token and scopes are kept if the answer has none.
    pub fn with_refreshed(&self, answer: TokenResponse, now: Timestamp) -> Self {
        Self {
            access_token: answer.access_token,
            is_dpop: answer.is_dpop,
            received_at: now,
            expires_at: answer.expires_at,
            refresh_token: answer.refresh_token.or_else(|| self.refresh_token.clone()),
            scopes: answer.scopes.unwrap_or_else(|| self.scopes.clone()),
            refusal_reason: None,
            ..self.clone()
        }
    }

    /// Returns the authorization server that issued the tokens.
    pub fn issuer(&self) -> &str {
        &self.origin.discovered.authorization_server.issuer
    }

    /// Returns `true` if the access token may be used.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.refusal_reason.is_none() && self.expires_at.is_none_or(|expires_at| now < expires_at)
    }

    /// Returns `true` if the access token is about to expire, or must no longer be used.
    pub fn needs_refresh(&self, now: Timestamp) -> bool {
        let is_expiring = |expires_at: Timestamp| {
            let tenth = expires_at.duration_since(self.received_at) / 10;
            expires_at.duration_since(now) <= tenth.min(REFRESH_MARGIN)
        };
        self.refusal_reason.is_some() || self.expires_at.is_some_and(is_expiring)
    }

    /// Returns `true` if the server would refuse another token too, because it refuses one that was just issued.
    pub fn is_too_new_to_replace(&self, now: Timestamp) -> bool {
        now.duration_since(self.received_at) < MIN_AGE_TO_REPLACE
    }

    /// Returns the scopes that the next consent requests in addition to the usual ones: those that the server demanded
    /// before the last consent, and during a step-up all that were granted, requested or demanded so far.
    pub fn scopes_for_next_consent(&self, now: Timestamp) -> Vec<String> {
        match self.recent_step_up(now) {
            Some(step_up) => join_scopes([&self.scopes[..], &self.origin.requested_scopes, &step_up.scopes]),
            None => self.demanded_scopes(),
        }
    }

    /// Returns the scopes that the server demanded, however long ago, and that the last consent requested. Others are
    /// forgotten with the step-up, because the authorization server may refuse each consent that requests them.
    fn demanded_scopes(&self) -> Vec<String> {
        let demanded = self.step_up.iter().flat_map(|step_up| &step_up.scopes);
        demanded.filter(|scope| self.origin.requested_scopes.contains(scope)).cloned().collect()
    }

    /// Returns the step-up, unless it is older than [`STEP_UP_LIFETIME`].
    pub fn recent_step_up(&self, now: Timestamp) -> Option<&StepUp> {
        self.step_up.as_ref().filter(|step_up| now.duration_since(step_up.since) < STEP_UP_LIFETIME)
    }

    /// Returns the step-up after the server has demanded these scopes.
    pub fn step_up_for(&self, challenged: &[String], now: Timestamp) -> StepUp {
        let last = self.recent_step_up(now);
        // Scopes of an old step-up leave space for new ones.
        let scopes = match last {
            Some(last) => merge_scopes(&last.scopes, challenged),
            None => merge_scopes(challenged, &self.demanded_scopes()),
        };
        // The consent that led to this token counts if it already requested the scopes.
        let consents = last.map_or_else(|| u32::from(self.has_requested(challenged)), |last| last.consents);
        StepUp { scopes, since: last.map_or(now, |last| last.since), consents }
    }

    /// Returns `true` if all of these scopes were requested.
    pub fn has_requested(&self, scopes: &[String]) -> bool {
        scopes.iter().all(|scope| self.origin.requested_scopes.contains(scope))
    }
}

/// Joins known and challenged scopes, up to [`MAX_SCOPES`] scopes and [`MAX_STEP_UP_LEN`] bytes.
pub fn merge_scopes(known: &[String], challenged: &[String]) -> Vec<String> {
    let mut len = 0;
    let fits = |scope: &String| {
        len += scope.len() + 1;
        len <= MAX_STEP_UP_LEN
    };
    join_scopes([known, challenged]).into_iter().take(MAX_SCOPES).take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_scopes_are_unique_and_limited() {
        let scopes = |from: usize, to: usize, len: usize| -> Vec<String> {
            (from..to).map(|number| format!("{number:0len$}")).collect()
        };
        assert_eq!(merge_scopes(&scopes(0, 2, 1), &scopes(1, 3, 1)), scopes(0, 3, 1));
        assert_eq!(merge_scopes(&scopes(0, 100, 3), &scopes(100, 300, 3)), scopes(0, MAX_SCOPES, 3));
        assert_eq!(merge_scopes(&scopes(0, 2, 255), &scopes(2, 9, 255)), scopes(0, 4, 255));
    }
}
