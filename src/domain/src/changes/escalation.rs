//! Escalation: further reviewers may decide on a change that has waited too long. Only the clock decides who may; no
//! transition takes place, and time alone never approves anything.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Terms;

/// The further reviewers of a change, and the time from which they may decide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Escalation {
    /// The time from the proposal until they may decide, in seconds.
    pub after: u64,
    /// Roles and groups (`policy.groups`).
    pub to: Vec<String>,
}

impl Terms {
    /// Returns the time from which further reviewers may decide on a change that was proposed at `created_at`. Returns `None`
    /// if the terms name none, or if every reviewer may decide anyway.
    pub fn escalates_at(&self, created_at: Timestamp) -> Option<Timestamp> {
        let escalation = self.escalate.as_ref().filter(|_| !self.reviewers.is_empty())?;
        let after = SignedDuration::from_secs(i64::try_from(escalation.after).ok()?);
        created_at.checked_add(after).ok()
    }

    /// Returns the roles and groups whose members may decide at the time `now`. Empty means every reviewer.
    pub fn reviewers_at(&self, created_at: Timestamp, now: Timestamp) -> Vec<&str> {
        let is_escalated = self.escalates_at(created_at).is_some_and(|at| at <= now);
        let further = self.escalate.iter().filter(|_| is_escalated).flat_map(|escalation| &escalation.to);
        let mut names: Vec<&str> = Vec::new();
        for name in self.reviewers.iter().chain(further) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(reviewers: &[&str], to: &[&str]) -> Terms {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Terms {
            reviewers: texts(reviewers),
            escalate: Some(Escalation { after: 1800, to: texts(to) }),
            ..Terms::default()
        }
    }

    #[test]
    fn further_reviewers_may_decide_from_the_escalation_on() {
        let created_at = Timestamp::from_second(1_000_000).unwrap();
        let at = |seconds: i64| Timestamp::from_second(1_000_000 + seconds).unwrap();
        let terms = terms(&["dba"], &["oncall", "dba"]);
        assert_eq!(terms.escalates_at(created_at), Some(at(1800)));
        assert_eq!(terms.reviewers_at(created_at, at(1799)), ["dba"]);
        assert_eq!(terms.reviewers_at(created_at, at(1800)), ["dba", "oncall"]);
        assert_eq!(terms.reviewers_at(created_at, at(-5)), ["dba"]);
    }

    #[test]
    fn terms_that_admit_everybody_do_not_escalate() {
        let created_at = Timestamp::UNIX_EPOCH;
        let open = terms(&[], &["oncall"]);
        assert_eq!(open.escalates_at(created_at), None);
        assert!(open.reviewers_at(created_at, Timestamp::MAX).is_empty(), "every reviewer may still decide");
        let endless =
            Terms { escalate: Some(Escalation { after: u64::MAX, to: vec!["oncall".into()] }), ..terms(&["dba"], &[]) };
        assert_eq!(endless.reviewers_at(created_at, Timestamp::MAX), ["dba"]);
    }

    #[test]
    fn terms_without_escalation_have_the_earlier_json() {
        let json = serde_json::to_string(&Terms::default()).unwrap();
        assert!(!json.contains("escalate"), "{json}");
        let json = serde_json::to_string(&terms(&["dba"], &["oncall"])).unwrap();
        assert!(json.contains(r#""escalate":{"after":1800,"to":["oncall"]}"#), "{json}");
    }
}
