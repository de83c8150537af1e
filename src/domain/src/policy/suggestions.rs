//! Suggests standing rules for calls that reviewers always approve. Nothing is read or stored here: the caller passes the
//! changes, and a person decides on the suggestions.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    argument_patterns::{ArgumentPattern, MAX_PATTERNS, read_arguments},
    condition::path_components,
};
use crate::changes::{Change, ChangeState, Operation, ReviewVerdict};

/// The number of approvals of a pattern from which a rule is suggested.
pub const APPROVALS_NEEDED: usize = 5;

/// A standing rule that would allow the agent of a change to make calls like it.
#[derive(Clone, Debug)]
pub struct SuggestedRule {
    /// The conditions on the arguments; empty if the rule covers any arguments.
    pub matching: Vec<ArgumentPattern>,
    /// The number of changes that the rule would have matched and that reviewers approved.
    pub approvals: usize,
    /// The changes that the rule would have matched, in the order of the history.
    pub matched: Vec<Arc<Change>>,
    /// The other changes of the tool.
    pub unmatched: Vec<Arc<Change>>,
}

/// A change of the history with the facts on which suggestions depend.
struct PastCall<'a> {
    change: &'a Arc<Change>,
    /// The proposed arguments; `None` if they are ambiguous or were deleted.
    arguments: Option<Map<String, Value>>,
    has_same_agent: bool,
    is_approved: bool,
    /// `true` if reviewers rejected or edited the call, or if it deletes something. No rule may match it.
    is_counterexample: bool,
}

impl<'a> PastCall<'a> {
    fn new(change: &'a Arc<Change>, like: &Change) -> Self {
        let has = |verdict| change.decisions.iter().any(|decision| decision.verdict == verdict);
        let has_same_agent = change.proposer.principal == like.proposer.principal;
        let was_run = matches!(
            change.state,
            ChangeState::Approved
                | ChangeState::Executing
                | ChangeState::Applied
                | ChangeState::Failed
                | ChangeState::OutcomeUnknown
        );
        // A rule sees the arguments of the agent, before a reviewer edits them.
        let proposed = change.proposed_arguments.as_ref().unwrap_or(&change.arguments);
        let arguments = if change.redacted.is_none() { read_arguments(proposed) } else { None };
        Self {
            is_approved: was_run
                && has_same_agent
                && has(ReviewVerdict::Approve)
                && change.edits.is_empty()
                && change.tool_hash == like.tool_hash
                && arguments.is_some(),
            is_counterexample: has(ReviewVerdict::Reject)
                || !change.edits.is_empty()
                || change.operation == Operation::Delete,
            arguments,
            has_same_agent,
            change,
        }
    }

    fn matches(&self, patterns: &[ArgumentPattern]) -> bool {
        patterns.is_empty()
            || self.arguments.as_ref().is_some_and(|arguments| patterns.iter().all(|p| p.matches(arguments)))
    }
}

/// Returns the rules that the history suggests for calls like `change`, the narrowest first. `history` holds changes of the same
/// tool.
///
/// A rule is suggested after [`APPROVALS_NEEDED`] approvals of the same agent's calls, unless somebody rejected or edited a
/// matching call of any agent.
pub fn suggest_rules(change: &Change, history: &[Arc<Change>]) -> Vec<SuggestedRule> {
    let Some(arguments) = read_arguments(&change.arguments) else { return Vec::new() };
    if change.operation == Operation::Delete {
        return Vec::new();
    }
    let has_same_operation = |past: &&Arc<Change>| {
        past.provider == change.provider
            && past.tool == change.tool
            && past.preview.tool_operation == change.preview.tool_operation
    };
    let calls: Vec<PastCall<'_>> =
        history.iter().filter(has_same_operation).map(|past| PastCall::new(past, change)).collect();
    let approved: Vec<&PastCall<'_>> = calls.iter().filter(|call| call.is_approved).collect();
    let candidates = [
        find_equal_values(&arguments, &approved),
        find_target(change, &arguments),
        find_folders(&arguments, &approved),
        Some(Vec::new()),
    ];
    let mut suggestions: Vec<SuggestedRule> = Vec::new();
    for matching in candidates.into_iter().flatten() {
        let approvals = count_matches(&approved, &matching);
        let is_known = suggestions.iter().any(|known| known.matching == matching);
        let is_refused = calls.iter().any(|call| call.is_counterexample && call.matches(&matching));
        if approvals < APPROVALS_NEEDED || is_known || is_refused {
            continue;
        }
        let (matched, unmatched): (Vec<_>, Vec<_>) =
            calls.iter().partition(|call| call.has_same_agent && call.matches(&matching));
        let changes = |calls: Vec<&PastCall<'_>>| calls.into_iter().map(|call| Arc::clone(call.change)).collect();
        suggestions.push(SuggestedRule {
            matching,
            approvals,
            matched: changes(matched),
            unmatched: changes(unmatched),
        });
    }
    suggestions.sort_by_key(|suggestion| suggestion.matched.len());
    suggestions
}

/// Returns the number of calls that match all patterns.
fn count_matches(calls: &[&PastCall<'_>], patterns: &[ArgumentPattern]) -> usize {
    calls.iter().filter(|call| call.matches(patterns)).count()
}

/// Returns the values that enough approved calls have in common with this one. Arguments that differ from call to call, such as a
/// text, are left out.
fn find_equal_values(arguments: &Map<String, Value>, approved: &[&PastCall<'_>]) -> Option<Vec<ArgumentPattern>> {
    let mut patterns: Vec<ArgumentPattern> = arguments
        .iter()
        .filter(|(_, value)| ArgumentPattern::can_equal(value))
        .map(|(name, value)| ArgumentPattern::equal(name, value))
        .collect();
    patterns.sort_by_cached_key(|pattern| std::cmp::Reverse(count_matches(approved, std::slice::from_ref(pattern))));
    let mut matching: Vec<ArgumentPattern> = Vec::new();
    for pattern in patterns.into_iter().take(MAX_PATTERNS) {
        matching.push(pattern);
        if count_matches(approved, &matching) < APPROVALS_NEEDED {
            matching.pop();
        }
    }
    (!matching.is_empty()).then_some(matching)
}

/// Returns the argument that names the target of the change, if exactly one does.
fn find_target(change: &Change, arguments: &Map<String, Value>) -> Option<Vec<ArgumentPattern>> {
    let id = change.target.id.as_deref()?;
    let names_target = |(_, value): &(&String, &Value)| match value {
        Value::String(text) => text == id,
        Value::Number(number) => number.to_string() == id,
        _ => false,
    };
    let mut naming = arguments.iter().filter(names_target).filter(|(_, value)| ArgumentPattern::can_equal(value));
    let (name, value) = naming.next()?;
    naming.next().is_none().then(|| vec![ArgumentPattern::equal(name, value)])
}

/// Returns the deepest folders that enough approved calls share with this one, one for each path in the arguments.
fn find_folders(arguments: &Map<String, Value>, approved: &[&PastCall<'_>]) -> Option<Vec<ArgumentPattern>> {
    let mut matching: Vec<ArgumentPattern> = Vec::new();
    for (name, value) in arguments {
        let Some(components) = value.as_str().and_then(path_components) else { continue };
        let folder =
            (1..components.len()).rev().map(|depth| format!("/{}", components[..depth].join("/"))).find(|folder| {
                let with_folder: Vec<_> =
                    matching.iter().cloned().chain([ArgumentPattern::within(name, folder.clone())]).collect();
                count_matches(approved, &with_folder) >= APPROVALS_NEEDED
            });
        // A rule that left out a path would allow it to lead anywhere.
        matching.push(ArgumentPattern::within(name, folder?));
    }
    (!matching.is_empty()).then_some(matching)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use serde_json::{json, value::to_raw_value};

    use super::*;
    use crate::changes::{Edit, ReviewDecision, testing};

    fn past(arguments: &Value, verdict: ReviewVerdict) -> Change {
        let state = if verdict == ReviewVerdict::Approve { ChangeState::Applied } else { ChangeState::Rejected };
        let mut change = testing::change("chg_1", "ci", 2, state);
        change.arguments = to_raw_value(arguments).unwrap().into();
        change.operation = Operation::Update;
        change.decisions = vec![ReviewDecision {
            reviewer: "alice".into(),
            display_name: None,
            owner: None,
            key_id: None,
            other_names: Vec::new(),
            deputy_for: None,
            token: None,
            verdict,
            comment: None,
            at: change.created_at,
            version: 1,
        }];
        change
    }

    fn approved(arguments: &Value) -> Change {
        past(arguments, ReviewVerdict::Approve)
    }

    fn patterns(history: &[Change], arguments: &Value) -> Vec<Vec<String>> {
        let mut change = approved(arguments);
        change.state = ChangeState::Pending;
        let history: Vec<_> = history.iter().cloned().map(Arc::new).collect();
        let show = |rule: SuggestedRule| rule.matching.iter().map(ToString::to_string).collect();
        suggest_rules(&change, &history).into_iter().map(show).collect()
    }

    fn note(name: u32) -> Value {
        json!({ "path": format!("/notes/{}/{name}.md", name % 2), "mode": "append", "text": format!("note {name}") })
    }

    #[test]
    fn five_approvals_suggest_narrowest_rule_first() {
        let history: Vec<Change> = (0..5).map(|n| approved(&note(n))).collect();
        assert_eq!(patterns(&history[..4], &note(9)), Vec::<Vec<String>>::new());
        assert_eq!(
            patterns(&history, &note(9)),
            [vec![r#"mode = "append""#.to_owned()], vec!["path within /notes".to_owned()], vec![]]
        );
        let deeper: Vec<Change> = (0..10).map(|n| approved(&note(n))).collect();
        assert_eq!(patterns(&deeper, &note(9))[0], ["path within /notes/1"]);
        let elsewhere = json!({ "path": "/etc/hosts", "mode": "replace", "text": "" });
        assert_eq!(patterns(&history, &elsewhere), [Vec::<String>::new()], "only the rule for any arguments fits");
    }

    #[test]
    fn rejected_corrected_or_deleting_call_suggests_nothing() {
        let history: Vec<Change> = (0..6).map(|n| approved(&note(n))).collect();
        let with = |change: Change| patterns(&[history.clone(), vec![change]].concat(), &note(9)).len();
        assert_eq!(with(approved(&note(7))), 3);
        assert_eq!(with(past(&note(7), ReviewVerdict::Reject)), 0);
        let mut by_another = past(&note(7), ReviewVerdict::Reject);
        by_another.proposer.principal = "other".into();
        assert_eq!(with(by_another), 0);
        let delete = Change { operation: Operation::Delete, ..approved(&note(7)) };
        assert_eq!(with(delete), 0);
        let edit = Edit {
            by: "alice".into(),
            display_name: None,
            owner: None,
            key_id: None,
            other_names: Vec::new(),
            comment: None,
            at: jiff::Timestamp::UNIX_EPOCH,
            from: String::new(),
            to: String::new(),
        };
        assert_eq!(with(Change { edits: vec![edit], ..approved(&note(7)) }), 0);
        let rejected = past(&json!({ "path": "/etc/hosts", "mode": "replace" }), ReviewVerdict::Reject);
        assert_eq!(with(rejected), 2, "narrower rules remain");
    }

    #[test]
    fn approvals_of_others_or_of_another_definition_do_not_count() {
        let mut history: Vec<Change> = (0..5).map(|n| approved(&note(n))).collect();
        history[0].proposer.principal = "other".into();
        assert!(patterns(&history, &note(9)).is_empty());
        history[0] = Change { tool_hash: "sha256:old".into(), ..approved(&note(0)) };
        assert!(patterns(&history, &note(9)).is_empty());
        history[0] = Change { decisions: Vec::new(), ..approved(&note(0)) };
        assert!(patterns(&history, &note(9)).is_empty(), "nobody decided on it");
    }

    #[test]
    fn target_and_every_path_restrict_the_rule() {
        let update = |n: u32| json!({ "issue": "CORE-1", "status": format!("s{n}"), "comment": n });
        let history: Vec<Change> = (0..5).map(|n| approved(&update(n))).collect();
        assert_eq!(patterns(&history, &update(9))[0], [r#"issue = "CORE-1""#]);
        let moved = |n: u32, to: &str| json!({ "from": format!("/in/{n}"), "to": format!("{to}/{n}") });
        let history: Vec<Change> = (0..5).map(|n| approved(&moved(n, "/out"))).collect();
        assert_eq!(patterns(&history, &moved(9, "/out"))[0], ["from within /in", "to within /out"]);
        assert_eq!(patterns(&history, &moved(9, "/etc")), [Vec::<String>::new()], "one path alone does not suffice");
    }
}
