//! The checks, with one file for each group. The function of a check is named after its id (`check_ping` runs
//! `handshake/ping`), unless several checks share one.
//!
//! To add a check:
//! 1. Add it to the table of its group, with the page of the specification that requires it.
//! 2. Give the server in `tests/check/server.rs` a fault with the check's name, which the check detects:
//!    `each_check_finds_exactly_its_fault` fails without one.
//! 3. Describe the fault in `tests/check/faults.rs`, and add a row for the check to `docs/checking.md`:
//!    `page_lists_each_check_with_its_fault` prints the missing row.

mod codes;
mod handshake;
mod http;
mod lists;
mod messages;
mod robustness;
mod stateless;
mod stdio;
mod tools;
mod utilities;
mod websocket;

use std::ops::RangeInclusive;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

use crate::{LEGACY_REVISIONS, MODERN_REVISION, probe::Probe, wire::ProbeError};

/// The subject of a group of checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum Group {
    Messages,
    Codes,
    Stdio,
    Handshake,
    Stateless,
    Tools,
    Lists,
    Utilities,
    Http,
    WebSocket,
    Robustness,
}

impl Group {
    pub const ALL: &[Self] = Self::VARIANTS;

    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// The level of a requirement in the specification.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Level {
    Must,
    Should,
}

const OLDEST: &str = LEGACY_REVISIONS[LEGACY_REVISIONS.len() - 1];
const NEWEST_LEGACY: &str = LEGACY_REVISIONS[0];

/// The reason why a check did not pass.
#[derive(Debug)]
pub(crate) enum NotPassed {
    Failed(String),
    Skipped(String),
}

impl From<ProbeError> for NotPassed {
    fn from(error: ProbeError) -> Self {
        Self::Failed(error.to_string())
    }
}

pub(crate) type Outcome<T = ()> = Result<T, NotPassed>;

type CheckFunction = fn(Probe) -> BoxFuture<'static, Outcome>;

/// The pages of the specification in the handshake revisions and in the stateless one, without the revision. They are equal
/// for a requirement of one era.
type SpecPages = (&'static str, &'static str);

/// A check of one requirement.
pub struct Check {
    pub id: &'static str,
    pub group: Group,
    pub level: Level,
    /// The requirement as a sentence.
    pub requirement: &'static str,
    /// The advice for fixing a failure.
    pub advice: &'static str,
    pub(crate) spec: SpecPages,
    /// The revisions that have the requirement. Revisions are dates, so their order as texts is that of time.
    revisions: RangeInclusive<&'static str>,
    /// The only transport that has the requirement; `None` means all.
    transport: Option<&'static str>,
    pub(crate) run: CheckFunction,
}

impl Check {
    /// Creates a check that applies to the revisions and the transport of its group.
    const fn new(id: &'static str, group: Group, run: CheckFunction) -> Self {
        let first = if matches!(group, Group::Http) { "2025-03-26" } else { OLDEST };
        let revisions = first..=MODERN_REVISION;
        let transport = match group {
            Group::Stdio => Some("stdio"),
            Group::Http => Some("http"),
            Group::WebSocket => Some("websocket"),
            _ => None,
        };
        Self { id, group, level: Level::Must, requirement: "", advice: "", spec: ("", ""), revisions, transport, run }
    }

    const fn must(self, requirement: &'static str) -> Self {
        Self { requirement, ..self }
    }

    const fn should(self, requirement: &'static str) -> Self {
        Self { level: Level::Should, requirement, ..self }
    }

    const fn advice(self, advice: &'static str) -> Self {
        Self { advice, ..self }
    }

    const fn spec(self, spec: SpecPages) -> Self {
        Self { spec, ..self }
    }

    /// Names the page of a requirement that only handshake revisions have.
    const fn handshake_spec(self, page: &'static str) -> Self {
        let revisions = *self.revisions.start()..=NEWEST_LEGACY;
        Self { spec: (page, page), revisions, ..self }
    }

    /// Names the page of a requirement that only the stateless revision has.
    const fn stateless_spec(self, page: &'static str) -> Self {
        Self { spec: (page, page), revisions: MODERN_REVISION..=MODERN_REVISION, ..self }
    }

    /// Names the first revision that has the requirement.
    const fn since(self, first: &'static str) -> Self {
        let revisions = first..=*self.revisions.end();
        Self { revisions, ..self }
    }

    const fn only_over(self, transport: &'static str) -> Self {
        Self { transport: Some(transport), ..self }
    }

    /// Formats the revisions that have the requirement, for a table.
    pub fn revisions(&self) -> String {
        let (first, last) = (*self.revisions.start(), *self.revisions.end());
        match (first == OLDEST, last == MODERN_REVISION) {
            (true, true) => "all".to_owned(),
            (true, false) => format!("to {last}"),
            (false, _) if first == last => first.to_owned(),
            (false, true) => format!("from {first}"),
            (false, false) => format!("{first} to {last}"),
        }
    }

    /// Returns `true` if the check applies to the server and revision.
    pub(crate) fn applies_to(&self, probe: &Probe) -> bool {
        let has_revision = self.revisions.contains(&&*probe.revision);
        has_revision && self.transport.is_none_or(|transport| transport == probe.target.transport())
    }
}

/// Iterates over all checks, in the order in which they run.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    [
        messages::CHECKS,
        codes::CHECKS,
        handshake::CHECKS,
        stateless::CHECKS,
        tools::CHECKS,
        lists::CHECKS,
        utilities::CHECKS,
        http::CHECKS,
        websocket::CHECKS,
        stdio::CHECKS,
        robustness::CHECKS,
    ]
    .into_iter()
    .flatten()
}

/// Returns the check that detects a server whose responses have wrong ids.
pub(crate) fn wrong_id_check() -> &'static Check {
    &messages::CHECKS[messages::ID_INTEGER]
}

/// Formats a value on one line and truncates it, for the reason of a result.
fn compact_json(value: &Value) -> String {
    truncate(&value.to_string())
}

/// Truncates a text for a report.
fn truncate(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

fn fail<T>(reason: String) -> Outcome<T> {
    Err(NotPassed::Failed(reason))
}

fn skip<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(NotPassed::Skipped(reason.into()))
}

/// Fails with the reason unless the condition holds.
fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { fail(reason()) }
}

/// Fails with the reason if an offending value was found.
fn ensure_none<T>(offender: Option<T>, reason: impl FnOnce(T) -> String) -> Outcome {
    offender.map_or(Ok(()), |offender| fail(reason(offender)))
}

/// Fails and quotes the response unless the condition holds.
fn ensure_response(holds: bool, response: &Value) -> Outcome {
    ensure(holds, || format!("it answers {}", compact_json(response)))
}

/// Fails and quotes the answer to a method unless the condition holds.
fn ensure_method_answer(holds: bool, method: &str, answer: &Value) -> Outcome {
    ensure(holds, || format!("{method} is answered with {}", compact_json(answer)))
}

/// Fails unless the response is an error with this code.
fn ensure_code(response: &Value, code: i64) -> Outcome {
    ensure_response(error_code(response) == Some(code), response)
}

/// Skips the check unless the server offers the capability.
fn skip_unless_offered(probe: &Probe, capability: &str) -> Outcome {
    if probe.server_info.offers(capability) { Ok(()) } else { skip(format!("it offers no {capability}")) }
}

/// Returns the methods of the lists that the server offers, except for the optional list of resource templates.
fn offered_lists(probe: &Probe) -> impl Iterator<Item = &'static str> {
    [("tools", "tools/list"), ("resources", "resources/list"), ("prompts", "prompts/list")]
        .into_iter()
        .filter_map(|(capability, method)| probe.server_info.offers(capability).then_some(method))
}

/// Returns the member of a response to which a JSON pointer leads, or null. The response may be any JSON.
fn take_member(mut response: Value, pointer: &str) -> Value {
    response.pointer_mut(pointer).map(Value::take).unwrap_or_default()
}

/// Returns the code of an error response.
fn error_code(response: &Value) -> Option<i64> {
    response["error"]["code"].as_i64()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn member_of_any_response_is_taken_or_null() {
        for other in [json!(7), json!([]), json!({}), json!({ "result": "text" }), json!({ "result": [] })] {
            assert_eq!(take_member(other, "/result/nextCursor"), Value::Null);
        }
        assert_eq!(take_member(json!({ "result": { "nextCursor": "a" } }), "/result/nextCursor"), "a");
    }

    #[test]
    fn each_check_has_id_page_and_advice() {
        let ids: BTreeSet<&str> = checks().map(|check| check.id).collect();
        assert_eq!(ids.len(), checks().count());
        assert_eq!(wrong_id_check().id, "messages/id-integer");
        for check in checks() {
            assert!(check.id.starts_with(&format!("{}/", check.group.as_str())), "{}", check.id);
            assert!(check.requirement.ends_with('.') && check.advice.ends_with('.'), "{}", check.id);
            let pages = [check.spec.0, check.spec.1];
            let used = match (*check.revisions.start(), *check.revisions.end()) {
                (MODERN_REVISION, _) => &pages[1..],
                (_, MODERN_REVISION) => &pages[..],
                _ => &pages[..1],
            };
            assert!(used.iter().all(|page| !page.is_empty()), "{}", check.id);
        }
        assert!(Group::ALL.iter().all(|group| Group::parse(group.as_str()) == Some(*group)));
        assert!(Group::ALL.iter().all(|group| checks().any(|check| check.group == *group)));
    }
}
