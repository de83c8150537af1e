//! Pruning, pins, standing rules and policies.

use super::*;
use countersign_domain::policy::{PinSource as _, standing_rules::UseCounter};

pub(super) fn finished_draft(id: &str, second: i64, state: ChangeState) -> TransitionDraft {
    let mut change = change(id, "agent", 2, state);
    change.updated_at = time_at(second);
    draft_for(change, Some(ChangeState::Executing))
}

pub(super) async fn prune(store: &dyn Store, pruning: Pruning) -> Result<(), WriteError> {
    crate::write(store, WriteRequest::Prune(pruning)).await
}

/// Returns a pruning request like the one that `review` prepares.
pub(super) fn pruning_request(
    contents: &[Arc<Change>],
    changes: &[(String, u64, ChangeState)],
    events_to: u64,
) -> Pruning {
    let redaction = |change: &Arc<Change>| {
        let left = countersign_domain::changes::retention::redact(change, time_at(900));
        let body = serde_json::to_string(&left).unwrap();
        let details = json!({ "version": left.version, "changeHash": body_hash(&body) }).to_string();
        PrunedChange { id: left.id.clone(), version: left.version, state: left.state, body: Some(body), details }
    };
    let deletion = |(id, version, state): &(String, u64, ChangeState)| PrunedChange {
        id: id.clone(),
        version: *version,
        state: *state,
        body: None,
        details: "{}".into(),
    };
    Pruning {
        at: time_at(900),
        changes: contents.iter().map(redaction).chain(changes.iter().map(deletion)).collect(),
        events_to,
        events_details: "{}".into(),
    }
}

pub(super) async fn pruning_removes_old_records_once(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    for id in ["old", "large", "young", "open"] {
        write(&*store, created_draft(id)).await.unwrap();
    }
    let mut large = finished_draft("large", 50, ChangeState::Rejected);
    let mut change = Change::clone(&large.change);
    change.summary = "x".repeat(100_000);
    large = TransitionDraft { kind: EventKind::Rejected, ..draft_for(change, Some(ChangeState::Pending)) };
    for done in
        [finished_draft("old", 10, ChangeState::Applied), large, finished_draft("young", 90, ChangeState::Applied)]
    {
        write(&*store, done).await.unwrap();
    }
    let ids = |old: &PrunableRecords| old.contents.iter().map(|change| change.id.clone()).collect::<Vec<_>>();
    let before = |contents, large, changes| PruningCutoffs { contents, large, changes, events: None };
    let old = store.find_prunable(before(Some(time_at(20)), Some((time_at(60), 70_000)), None)).await.unwrap();
    assert_eq!((ids(&old), old.more), (vec!["old".to_owned(), "large".into()], false));
    assert!(
        store
            .find_prunable(before(Some(time_at(20)), Some((time_at(60), 200_000)), None))
            .await
            .unwrap()
            .contents
            .len()
            == 1
    );
    let before_pruning = store.heads().await.unwrap();
    prune(&*store, pruning_request(&old.contents, &[], 0)).await.unwrap();
    let again = prune(&*store, pruning_request(&old.contents, &[], 0)).await;
    assert!(matches!(again, Err(WriteError::Conflict)), "{again:?}");
    let after = store.heads().await.unwrap();
    assert_eq!((after.event, after.audit.seq), (before_pruning.event, before_pruning.audit.seq + 2));
    assert!(store.get("old").await.unwrap().unwrap().redacted.is_some());
    assert!(store.find_prunable(before(Some(time_at(60)), None, None)).await.unwrap().contents.is_empty());

    let old = store.find_prunable(before(None, None, Some(time_at(60)))).await.unwrap();
    let mut going: Vec<&str> = old.changes.iter().map(|(id, ..)| id.as_str()).collect();
    going.sort_unstable();
    assert_eq!(going, ["large", "old"]);
    prune(&*store, pruning_request(&[], &old.changes, 0)).await.unwrap();
    assert!(store.get("old").await.unwrap().is_none());
    let criteria = ChangeCriteria { text: Some("create".into()), ..ChangeCriteria::default() };
    assert_eq!(list_ids(&*store, &[], criteria).await, ["open", "young"], "deleted changes are not found");

    let events = PruningCutoffs { events: Some(time_at(5000)), ..PruningCutoffs::default() };
    let old = store.find_prunable(events).await.unwrap();
    assert_eq!(old.events_to, 6, "the newest event remains, so that the numbers continue");
    prune(&*store, pruning_request(&[], &[], 99)).await.unwrap();
    let left: Vec<u64> = store.events_after(0, 9).await.unwrap().iter().map(|event| event.seq).collect();
    assert_eq!(left, [7]);
    assert_eq!(write(&*store, created_draft("new")).await.unwrap().seq, 8);
    assert_eq!(store.backup_time().await.unwrap(), None);
    store.close();
    let verified = location_of(dir.path()).verify_audit(None).unwrap();
    assert_eq!((verified.entries, verified.changes), (7 + 2 + 2 + 1 + 1, 3));
}

pub(super) async fn redacted_change_refuses_a_verification(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    write(&*store, created_draft("a")).await.unwrap();
    let mut applied = change("a", "agent", 2, ChangeState::Applied);
    applied.verification = Some(Verification::not_read());
    write(&*store, draft_for(applied.clone(), Some(ChangeState::Executing))).await.unwrap();
    prune(&*store, pruning_request(&[Arc::new(applied.clone())], &[], 0)).await.unwrap();
    let heads = store.heads().await.unwrap();
    // The verification was prepared before the redaction.
    let verification = Verification::from_diff(DiffBuilder::new().finish());
    let verified = Change { version: 3, verification: Some(verification), ..applied };
    let draft = TransitionDraft { kind: EventKind::Verified, ..draft_for(verified, Some(ChangeState::Applied)) };
    let refused = write(&*store, draft).await;
    assert!(matches!(refused, Err(WriteError::Conflict)), "{refused:?}");
    let left = store.get("a").await.unwrap().unwrap();
    assert_eq!((left.version, left.arguments.get(), &left.verification), (2, "{}", &Some(Verification::not_read())));
    assert_eq!(store.heads().await.unwrap(), heads, "a refused write leaves no trace");
    store.close();
    location_of(dir.path()).verify_audit(None).unwrap();
}

pub(super) async fn write_record(store: &dyn Store, record: AuditRecord, restored: bool) -> Result<(), WriteError> {
    crate::write(store, if restored { WriteRequest::Restored(record) } else { WriteRequest::Record(record) }).await
}

pub(super) fn rule_record(event: &'static str, rules: Vec<StandingRule>) -> AuditRecord {
    AuditRecord { rules, ..AuditRecord::new(event, time_at(7), "alice", r#"{"by":"hand"}"#.into()) }
}

pub(super) fn standing_rule(id: &str, verdict: &str) -> StandingRule {
    let rule = json!({
        "id": id, "verdict": verdict, "provider": "fs", "tool": "write", "toolHash": "sha256:0", "createdBy": "alice",
        "createdByRole": "reviewer", "createdAt": time_at(0), "uses": 0,
    });
    serde_json::from_value(rule).unwrap()
}

pub(super) fn policy_snapshot(digest: &str) -> PolicySnapshot {
    PolicySnapshot {
        digest: digest.into(),
        refused: Some("other".into()),
        body: "{\"default\":\"it's 'deny'\"}".into(),
    }
}

pub(super) async fn policy_is_kept_after_reopening(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    assert_eq!(store.policies().await.unwrap(), PolicySnapshots::default());
    for digest in ["first", "second"] {
        store.save_policy(policy_snapshot(digest), false).await.unwrap();
    }
    let heads = store.heads().await.unwrap();
    assert_eq!(heads.audit.seq, 2, "each save has an audit entry");
    store.close();
    let store = location_of(dir.path()).open().unwrap();
    let found = store.policies().await.unwrap();
    // On a server, each opening is a new node without its own policy, but all nodes share the newest policy.
    assert_eq!(found.newest, Some(policy_snapshot("second")));
    assert!(found.own.is_none_or(|own| own == policy_snapshot("second")));
    assert_eq!(store.heads().await.unwrap(), heads, "reading writes no entry");
    store.save_policy(policy_snapshot("third"), true).await.unwrap();
    let third = Some(policy_snapshot("third"));
    assert_eq!(
        store.policies().await.unwrap(),
        PolicySnapshots { own: third.clone(), newest: third, has_audit_entry: true }
    );
    store.close();
    assert!(location_of(dir.path()).verify_audit(None).unwrap().covered.policy);
    assert!(store.save_policy(policy_snapshot("fourth"), true).await.is_err());
}

pub(super) async fn record_about_a_change_is_written_once(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    for id in ["one", "two"] {
        write(&*store, created_draft(id)).await.unwrap();
    }
    let once = |change: &str, event| AuditRecord {
        change: change.into(),
        once: true,
        ..AuditRecord::new(event, time_at(7), "system", "{}".into())
    };
    write_record(&*store, once("one", "escalated"), false).await.unwrap();
    let again = write_record(&*store, once("one", "escalated"), false).await;
    assert!(matches!(again, Err(WriteError::Conflict)), "{again:?}");
    for (change, event) in [("two", "escalated"), ("one", "late_result")] {
        write_record(&*store, once(change, event), false).await.unwrap();
    }
    assert_eq!(store.heads().await.unwrap().audit.seq, 5);
}

pub(super) async fn pins_and_rules_are_kept_with_entries(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let location = location_of(dir.path());
    let store = location.open().unwrap();
    let pins = PinStore::open(Arc::clone(&store)).await.unwrap();
    let tool = countersign_domain::policy::pins::Definition {
        name: "read".into(),
        hash: "h1".into(),
        text: r#"{"a":"\u0000"}"#.into(),
    };
    pins.accept(("fs", "behind"), std::slice::from_ref(&tool), None, "alice").await.unwrap();
    pins.revoke("fs", &[tool], "bob").await.unwrap();
    assert_eq!(store.pins().await.unwrap().servers, pins.pins().servers);
    write_record(
        &*store,
        rule_record("standing_rule_created", vec![standing_rule("srl_1", "allow"), standing_rule("srl_2", "deny")]),
        false,
    )
    .await
    .unwrap();
    let ids = |rules: Vec<StandingRule>| rules.into_iter().map(|rule| (rule.id.clone(), rule.has_ended())).collect();
    let rules: Vec<(String, bool)> = ids(store.standing_rules().await.unwrap());
    assert_eq!(rules, [("srl_1".to_owned(), false), ("srl_2".to_owned(), false)]);
    // A restored backup ends rules that allow, because nobody knows which rules were revoked since.
    write_record(&*store, rule_record("restored", Vec::new()), true).await.unwrap();
    let rules: Vec<(String, bool)> = ids(store.standing_rules().await.unwrap());
    assert_eq!(rules, [("srl_1".to_owned(), true), ("srl_2".to_owned(), false)]);
    assert_eq!(location.reviewer_records().unwrap().unwrap().rules.len(), 2);
    store.close();
    let covered = location.verify_audit(None).unwrap().covered;
    assert_eq!((covered.pins, covered.rules, covered.uncovered), (1, 2, 0));
}

pub(super) async fn rule_ends_only_once(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    let (allow, deny) = (standing_rule("srl_1", "allow"), standing_rule("srl_2", "deny"));
    let created = rule_record("standing_rule_created", vec![allow.clone(), deny.clone()]);
    write_record(&*store, created, false).await.unwrap();
    let revoked = StandingRule { revoked_at: Some(time_at(1)), revoked_by: Some("alice".into()), ..allow.clone() };
    let orphaned = StandingRule { orphaned_at: Some(time_at(1)), ..deny };
    write_record(&*store, rule_record("standing_rule_revoked", vec![revoked]), false).await.unwrap();
    write_record(&*store, rule_record("standing_rule_orphaned", vec![orphaned.clone()]), false).await.unwrap();
    // Another node, which has not read these records yet, ends and marks the rules too.
    let expired = StandingRule { expired_at: Some(time_at(2)), ..allow };
    for (event, rule) in [("standing_rule_expired", expired), ("standing_rule_orphaned", orphaned.clone())] {
        let again = write_record(&*store, rule_record(event, vec![rule]), false).await;
        assert!(matches!(again, Err(WriteError::Conflict)), "{again:?}");
    }
    let rules = store.standing_rules().await.unwrap();
    assert_eq!((rules[0].revoked_by.as_deref(), rules[0].expired_at), (Some("alice"), None));
    let ended = StandingRule { revoked_at: Some(time_at(3)), ..orphaned };
    write_record(&*store, rule_record("standing_rule_revoked", vec![ended]), false).await.unwrap();
    store.close();
}

pub(super) async fn uses_of_a_rule_add_up(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let location = location_of(dir.path());
    let store = location.open().unwrap();
    let created = rule_record("standing_rule_created", vec![standing_rule("srl_1", "allow")]);
    write_record(&*store, created, false).await.unwrap();
    let used = |uses| StandingRule { uses: UseCounter::new(uses), ..standing_rule("srl_1", "allow") };
    let revoked = StandingRule { revoked_at: Some(time_at(1)), ..used(1) };
    for (event, rule) in [(RULE_USED, used(2)), (RULE_USED, used(3)), ("standing_rule_revoked", revoked)] {
        write_record(&*store, rule_record(event, vec![rule]), false).await.unwrap();
    }
    // Another node has counted uses before it read the revocation.
    write_record(&*store, rule_record(RULE_USED, vec![used(4)]), false).await.unwrap();
    let rules = store.standing_rules().await.unwrap();
    assert_eq!((rules[0].uses.get(), rules[0].has_ended()), (2 + 3 + 1 + 4, true));
    store.close();
    assert_eq!(location.verify_audit(None).unwrap().covered.rules, 1);
}
