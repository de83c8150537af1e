//! One test suite for all backends, which uses only [`StoreLocation`] and the traits.

use std::{
    path::Path,
    sync::{Arc, Mutex, atomic::AtomicUsize, atomic::Ordering},
    time::{Duration, Instant},
};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    drafts::{claim, create_approved, created, draft, submit, transition, updated, write},
    keys::{ApiKey, CodeOutcome, SignIn},
    webhooks::{AttemptResult, DeliveryState, PendingDelivery},
    *,
};
use countersign_domain::{
    changes::{
        audit::{EntryContent, Verifier},
        digest::body_hash,
        testing::change,
    },
    principal::{Principal, Role, SecretHash},
};

/// Returns the location of the store that belongs to a directory. The same directory always has the same store.
type LocationOf = fn(&Path) -> StoreLocation;

async fn writes_are_read_back_after_reopening(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    assert_eq!(store.heads().await.unwrap(), Heads::default());
    assert!(store.get("a").await.unwrap().is_none());
    let draft = created("a");
    let body = draft.body.clone();
    let written = write(&*store, draft).await.unwrap();
    assert_eq!(written.seq, 1);
    let event: Value = serde_json::from_slice(&written.event).unwrap();
    assert_eq!(event, json!({ "type": "change.created", "seq": 1, "change": { "id": "a" } }));
    let read = store.get("a").await.unwrap().unwrap();
    assert_eq!(serde_json::to_string(&*read).unwrap(), body);
    assert_eq!(read.arguments.get(), r#"{ "a" :1.50}"#, "the arguments keep their bytes");
    let written = write(&*store, updated("a", 2, ChangeState::Pending, ChangeState::Approved)).await.unwrap();
    assert_eq!(written.seq, 2);
    assert_eq!(store.get("a").await.unwrap().unwrap().state, ChangeState::Approved);
    let before = store.heads().await.unwrap();
    assert_eq!((before.event, before.audit.seq), (2, 2));
    store.close();
    assert!(!store.is_open());
    drop(store);

    let store = location_of(dir.path()).open().unwrap();
    assert_eq!(store.heads().await.unwrap(), before, "durable writes survive");
    assert_eq!(write(&*store, created("b")).await.unwrap().seq, 3);
    let events = store.events_after(1, 10).await.unwrap();
    assert_eq!(
        events.iter().map(|e| (e.seq, e.kind.as_str())).collect::<Vec<_>>(),
        [(2, "change.approved"), (3, "change.created")]
    );
    assert_eq!(store.events_after(0, 1).await.unwrap().len(), 1);
    assert!(store.events_after(3, 10).await.unwrap().is_empty());
}

async fn write_with_wrong_version_is_refused(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    write(&*store, created("a")).await.unwrap();
    for wrong in [1, 3, 9] {
        let mut draft = updated("a", 2, ChangeState::Pending, ChangeState::Approved);
        draft.expected = Some(wrong - 1);
        if wrong != 2 {
            assert!(matches!(write(&*store, draft).await, Err(WriteError::Conflict)));
        }
    }
    let unknown = updated("b", 2, ChangeState::Pending, ChangeState::Approved);
    assert!(matches!(write(&*store, unknown).await, Err(WriteError::Conflict)));
    let heads = store.heads().await.unwrap();
    assert_eq!((heads.event, heads.audit.seq), (1, 1), "a refused write leaves no trace");
    write(&*store, updated("a", 2, ChangeState::Pending, ChangeState::Approved)).await.unwrap();
}

async fn ids_and_idempotency_keys_are_unique(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    let keyed = |id: &str, principal: &str, key: &str| {
        let mut change = change(id, principal, 1, ChangeState::Pending);
        change.idempotency_key = Some(key.into());
        draft(change, None)
    };
    write(&*store, keyed("a", "agent", "k")).await.unwrap();
    assert!(matches!(write(&*store, created("a")).await, Err(WriteError::Duplicate)));
    assert!(matches!(write(&*store, keyed("b", "agent", "k")).await, Err(WriteError::Duplicate)));
    write(&*store, keyed("c", "other", "k")).await.unwrap();
    write(&*store, created("d")).await.unwrap();
    write(&*store, created("e")).await.unwrap();
    assert_eq!(store.find_idempotent("agent", "k").await.unwrap().unwrap().id, "a");
    assert_eq!(store.find_idempotent("other", "k").await.unwrap().unwrap().id, "c");
    assert!(store.find_idempotent("agent", "l").await.unwrap().is_none());
    assert_eq!(store.heads().await.unwrap().event, 4);
}

async fn target_stays_taken_after_an_unknown_outcome(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let open = || location_of(dir.path()).open().unwrap();
    let store = open();
    let by = store.nodes().claimant();
    for id in ["a", "b", "c"] {
        create_approved(&*store, id, "file").await;
    }
    let claimed = async |store: &dyn Store, id: &str, by: &Option<Claimant>| {
        write(store, claim(id, by.clone(), "file")).await.map(drop)
    };
    let lost = |id: &str, by: &Option<Claimant>, until: Timestamp| {
        let mut draft = transition(id, 4, ChangeState::Executing, ChangeState::OutcomeUnknown, by.clone(), "file");
        let after = Arc::make_mut(&mut draft.change);
        after.target_taken_until = Some(until);
        Draft { body: serde_json::to_string(after).unwrap(), ..draft }
    };
    let target = claim("a", None, "file").change.target_hash();
    let occupant = async |store: &dyn Store| {
        let found = store.occupants(vec![target.clone(), "another".into()], Timestamp::now()).await.unwrap();
        found.into_iter().map(|occupant| (occupant.change, occupant.until)).next()
    };
    assert_eq!(occupant(&*store).await, None);
    claimed(&*store, "a", &by).await.unwrap();
    assert!(matches!(claimed(&*store, "b", &by).await, Err(WriteError::Busy)));
    assert_eq!(occupant(&*store).await, Some(("a".into(), None)));
    let hour = Timestamp::from_second(Timestamp::now().as_second() + 3600).unwrap();
    write(&*store, lost("a", &by, hour)).await.unwrap();
    assert!(matches!(claimed(&*store, "b", &by).await, Err(WriteError::Busy)));
    store.close();
    drop(store);

    let store = open();
    let by = store.nodes().claimant();
    assert!(
        matches!(claimed(&*store, "b", &by).await, Err(WriteError::Busy)),
        "the target stays taken after a restart"
    );
    assert_eq!(occupant(&*store).await, Some(("a".into(), Some(hour))));
    let settled = transition("a", 5, ChangeState::OutcomeUnknown, ChangeState::Failed, None, "file");
    write(&*store, settled).await.unwrap();
    assert_eq!(occupant(&*store).await, None, "a person has settled it");
    claimed(&*store, "b", &by).await.unwrap();
    let soon = Timestamp::from_millisecond(Timestamp::now().as_millisecond() + 300).unwrap();
    write(&*store, lost("b", &by, soon)).await.unwrap();
    while matches!(claimed(&*store, "c", &by).await, Err(WriteError::Busy)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(Timestamp::now() >= soon, "the target was taken until the end of its time");
    write(&*store, transition("b", 5, ChangeState::OutcomeUnknown, ChangeState::Failed, None, "file")).await.unwrap();
    assert_eq!(
        occupant(&*store).await,
        Some(("c".into(), None)),
        "a late settlement does not free the target of another change"
    );
    write(&*store, transition("c", 4, ChangeState::Executing, ChangeState::Applied, by, "file")).await.unwrap();
    assert_eq!(occupant(&*store).await, None);
    store.close();
}

/// The writes are queued together, so that they probably share a transaction.
async fn failed_write_does_not_affect_others(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    let answers: Vec<_> = (0..50)
        .flat_map(|n| {
            let id = format!("c{n}");
            [created(&id), created(&id), updated("none", 2, ChangeState::Pending, ChangeState::Approved)]
        })
        .map(|draft| submit(&*store, draft))
        .collect();
    let mut seqs = Vec::new();
    for (n, answer) in answers.into_iter().enumerate() {
        match (n % 3, answer.await.unwrap()) {
            (0, Ok(written)) => seqs.push(written.seq),
            (1, Err(WriteError::Duplicate)) | (2, Err(WriteError::Conflict)) => {}
            (_, other) => panic!("{n}: {other:?}"),
        }
    }
    assert_eq!(seqs, (1..=50).collect::<Vec<_>>(), "the numbers have no gaps and follow the order of submission");
    assert_eq!(store.heads().await.unwrap().event, 50);
}

async fn callbacks_run_in_commit_order(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, seen) = (&store, &seen);
            scope.spawn(move || {
                for n in 0..100 {
                    let seen = Arc::clone(seen);
                    store.submit(
                        WriteRequest::Transition(created(&format!("{thread}-{n}"))),
                        Box::new(move |result, _| seen.lock().unwrap().push(result.unwrap().seq)),
                    );
                }
            });
        }
    });
    store.close();
    assert_eq!(*seen.lock().unwrap(), (1..=400).collect::<Vec<_>>());
    assert!(matches!(write(&*store, created("late")).await, Err(WriteError::Store(StoreError::Closed))));
    assert!(matches!(store.get("0-0").await, Err(StoreError::Closed)));
}

async fn one_of_many_concurrent_writes_succeeds(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    write(&*store, created("a")).await.unwrap();
    let won = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (store, won) = (&store, &won);
            scope.spawn(move || {
                for _ in 0..125 {
                    let won = Arc::clone(won);
                    let done: WriteCallback = Box::new(move |result, _| match result {
                        Ok(_) => {
                            won.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(WriteError::Conflict) => {}
                        Err(other) => panic!("{other}"),
                    });
                    let request = updated("a", 2, ChangeState::Pending, ChangeState::Approved);
                    store.submit(WriteRequest::Transition(request), done);
                }
            });
        }
    });
    store.close();
    assert_eq!(won.load(Ordering::SeqCst), 1);
}

async fn listings_are_filtered_paged_and_bounded(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    let states = [ChangeState::Pending, ChangeState::Applied, ChangeState::Stale];
    for n in 0..30 {
        let principal = if n % 2 == 0 { "even" } else { "odd" };
        write(&*store, draft(change(&format!("c{n}"), principal, 1, states[n % 3]), None)).await.unwrap();
    }
    let all = |states: Vec<ChangeState>, principal: Option<&str>, limit: usize| {
        let store = Arc::clone(&store);
        let principals: Vec<String> = principal.into_iter().map(ToOwned::to_owned).collect();
        async move {
            let (mut before, mut found) = (None, Vec::new());
            loop {
                let (states, principals) = (states.clone(), principals.clone());
                let query = ListQuery { states, principals, before, limit, ..ListQuery::default() };
                let page = store.list(query).await.unwrap();
                assert!(page.items.len() <= limit);
                before = page.items.last().map(|(no, _)| *no);
                found.extend(page.items.into_iter().map(|(_, c)| c.id.clone()));
                if !page.more {
                    return found;
                }
            }
        }
    };
    let expect = |keep: fn(usize) -> bool| -> Vec<String> {
        (0..30).rev().filter(|n| keep(*n)).map(|n| format!("c{n}")).collect()
    };
    for limit in [1, 7, 30, 100] {
        assert_eq!(all(vec![], None, limit).await, expect(|_| true));
        assert_eq!(all(vec![ChangeState::Pending], None, limit).await, expect(|n| n % 3 == 0));
        let two = vec![ChangeState::Stale, ChangeState::Pending, ChangeState::Stale];
        assert_eq!(all(two.clone(), None, limit).await, expect(|n| n % 3 != 1));
        assert_eq!(all(two, Some("odd"), limit).await, expect(|n| n % 3 != 1 && n % 2 == 1));
        assert_eq!(all(vec![], Some("even"), limit).await, expect(|n| n % 2 == 0));
        assert!(all(vec![], Some("nobody"), limit).await.is_empty());
        assert!(all(vec![ChangeState::Failed], None, limit).await.is_empty());
    }
    for n in 0..5 {
        let mut large = change(&format!("large{n}"), "large", 1, ChangeState::Pending);
        large.summary = "x".repeat(3 << 20);
        write(&*store, draft(large, None)).await.unwrap();
    }
    let query = ListQuery { principals: vec!["large".into()], limit: 100, ..ListQuery::default() };
    let page = store.list(query).await.unwrap();
    assert!(page.items.len() == 2 && page.more, "two large changes fill a page");
    assert_eq!(all(vec![], Some("large"), 100).await.len(), 5);
}

async fn live_changes_and_counts_match_states(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    for (n, &state) in ChangeState::ALL.iter().enumerate() {
        for m in 0..=n {
            write(&*store, draft(change(&format!("{}-{m}", state.as_str()), "agent", 1, state), None)).await.unwrap();
        }
    }
    let live = store.live_changes().await.unwrap();
    assert!(live.iter().all(|c| !c.state.is_final() && c.principal == "agent" && c.bytes > 100));
    let mut counts = store.count_by_state().await.unwrap();
    counts.sort_by_key(|(_, n)| *n);
    assert_eq!(counts, ChangeState::ALL.iter().copied().zip(1..).collect::<Vec<_>>());
    let finals: u64 = counts.iter().filter(|(s, _)| s.is_final()).map(|(_, n)| n).sum();
    assert_eq!(live.len() as u64, counts.iter().map(|(_, n)| n).sum::<u64>() - finals);
}

async fn audit_pages_form_a_valid_chain(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    for n in 0..10 {
        write(&*store, created(&format!("c{n}"))).await.unwrap();
        write(&*store, updated(&format!("c{n}"), 2, ChangeState::Pending, ChangeState::Approved)).await.unwrap();
    }
    let mut entries = Vec::new();
    let mut before = None;
    loop {
        let page = store.audit_page(None, before, 7).await.unwrap();
        let Some(last) = page.last() else { break };
        before = Some(last.seq);
        entries.extend(page);
    }
    let mut verifier = Verifier::default();
    for entry in entries.iter().rev() {
        let at = entry.at.to_string();
        let content = EntryContent {
            seq: entry.seq,
            at: &at,
            change_id: &entry.change_id,
            event: &entry.event,
            from: entry.from.map(ChangeState::as_str),
            to: entry.to.map_or("", ChangeState::as_str),
            actor: &entry.actor,
            details: entry.details.get(),
        };
        verifier.check_entry(&content, &entry.prev_hash, &entry.hash).unwrap();
    }
    assert_eq!(verifier.finish().unwrap(), store.heads().await.unwrap().audit);
    let page = store.audit_page(Some("c3".into()), None, 50).await.unwrap();
    let shown: Vec<_> = page.iter().map(|e| (e.event.as_str(), e.from, e.to)).collect();
    assert_eq!(
        shown,
        [
            ("approved", Some(ChangeState::Pending), Some(ChangeState::Approved)),
            ("created", None, Some(ChangeState::Pending))
        ]
    );
}

/// Any sequence of writes has the same outcome as in a simple model.
fn store_behaves_like_the_model(location_of: LocationOf) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let steps = proptest::collection::vec((0_u8..5, 0_u64..4, any::<bool>()), 1..80);
    proptest!(ProptestConfig::with_cases(24), |(steps in steps)| {
        let dir = tempfile::tempdir().unwrap();
        let store = location_of(dir.path()).open().unwrap();
        let mut model: std::collections::BTreeMap<String, u64> = std::collections::BTreeMap::new();
        let mut answers = Vec::new();
        let mut seq = 0;
        for (which, version, create) in steps {
            let id = format!("c{which}");
            let (draft, ok) = if create {
                let fits = !model.contains_key(&id);
                (created(&id), fits)
            } else {
                let fits = version > 0 && model.get(&id) == Some(&version);
                (updated(&id, version + 1, ChangeState::Pending, ChangeState::Approved), fits)
            };
            if ok {
                seq += 1;
                model.insert(id, draft.change.version);
            }
            answers.push((submit(&*store, draft), ok.then_some(seq)));
        }
        runtime.block_on(async {
            for (answer, expected) in answers {
                let got = answer.await.unwrap().ok().map(|w| w.seq);
                prop_assert_eq!(got, expected);
            }
            for (id, version) in &model {
                prop_assert_eq!(store.get(id).await.unwrap().unwrap().version, *version);
            }
            let heads = store.heads().await.unwrap();
            prop_assert_eq!((heads.event, heads.audit.seq), (seq, seq));
            Ok(())
        })?;
        store.close();
        let verified = location_of(dir.path()).verify_audit(None).unwrap();
        prop_assert_eq!((verified.entries, verified.changes), (seq, model.len() as u64));
    });
}

/// Returns the location of the PostgreSQL database that belongs to a directory.
fn server_database(dir: &Path) -> StoreLocation {
    StoreLocation::server(&servers::url_of(dir), None).unwrap()
}

/// Returns the ids of the changes on the first page of a filtered listing.
async fn list_ids(store: &dyn Store, states: &[ChangeState], narrow: ChangeCriteria) -> Vec<String> {
    let query = ListQuery { states: states.to_vec(), narrow, limit: 10, ..ListQuery::default() };
    store.list(query).await.unwrap().items.into_iter().map(|(_, change)| change.id.clone()).collect()
}

/// Returns the numbers of the matching entries, and the number below which the search continues.
async fn search_numbers(
    store: &dyn Store,
    search: AuditSearch,
    before: Option<u64>,
    limit: usize,
) -> (Vec<u64>, Option<u64>) {
    let FoundEntries { entries, next } = store.search_audit(search, before, limit).await.unwrap();
    (entries.into_iter().map(|found| found.entry.seq).collect(), next)
}

async fn searches_find_changes_and_entries(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    for (n, (provider, tool)) in [("fs", "write"), ("fs", "move"), ("tracker", "write")].into_iter().enumerate() {
        let mut change = change(&format!("chg_{n}"), "Zoë", 1, ChangeState::Pending);
        (change.provider, change.tool) = (provider.into(), tool.into());
        change.summary = format!("Rotate the KEYS of n\u{ba} {n}, {}% of Straße", 10 * n);
        change.created_at = time(i64::try_from(n).unwrap());
        write(&*store, draft(change, None)).await.unwrap();
    }
    let text = |text: &str| ChangeCriteria { text: Some(text.into()), ..ChangeCriteria::default() };
    let of = |provider: &str| ChangeCriteria { providers: vec![provider.into()], ..ChangeCriteria::default() };
    assert_eq!(list_ids(&*store, &[], text("rotate the keys")).await, ["chg_2", "chg_1", "chg_0"]);
    assert_eq!(list_ids(&*store, &[], text("ZOË")).await.len(), 3);
    assert_eq!(list_ids(&*store, &[], text("10%")).await, ["chg_1"], "the text has no wildcards");
    assert_eq!(list_ids(&*store, &[], of("fs")).await, ["chg_1", "chg_0"]);
    let both = ChangeCriteria { tools: vec!["write".into(), "x".into()], ..of("fs") };
    assert_eq!(list_ids(&*store, &[ChangeState::Pending], both.clone()).await, ["chg_0"]);
    assert!(list_ids(&*store, &[ChangeState::Applied], both).await.is_empty());
    let between = ChangeCriteria { since: Some(time(1)), until: Some(time(2)), ..ChangeCriteria::default() };
    assert_eq!(list_ids(&*store, &[], between).await, ["chg_1"]);
    // An edit may change the summary.
    let mut edited = change("chg_0", "Zoë", 2, ChangeState::Pending);
    edited.summary = "Something else".into();
    write(&*store, Draft { kind: EventKind::Edited, ..draft(edited, Some(ChangeState::Pending)) }).await.unwrap();
    assert_eq!(list_ids(&*store, &[], text("something ELSE")).await, ["chg_0"]);
    assert_eq!(list_ids(&*store, &[], text("rotate")).await.len(), 2);

    let text = |text: &str| AuditSearch { text: Some(text.into()), ..AuditSearch::default() };
    assert_eq!(
        search_numbers(&*store, text("Something"), None, 9).await,
        (vec![4, 1], None),
        "the title of the change matches"
    );
    let by_actor =
        AuditSearch { events: vec!["edited".into()], actors: vec!["alice".into()], ..AuditSearch::default() };
    assert_eq!(search_numbers(&*store, by_actor, None, 9).await, (vec![4], None));
    let of_change = AuditSearch { change: Some("chg_1".into()), ..AuditSearch::default() };
    assert_eq!(search_numbers(&*store, of_change, Some(4), 9).await.0, [2]);
    assert_eq!(search_numbers(&*store, AuditSearch::default(), None, 3).await, (vec![4, 3, 2], Some(2)));
    assert_eq!(search_numbers(&*store, AuditSearch::default(), Some(2), 3).await, (vec![1], None));
    let titles = store.search_audit(AuditSearch::default(), None, 1).await.unwrap();
    assert_eq!(titles.entries[0].title.as_deref(), Some("Something else"));
    assert_eq!(store.changes_with_votes().await.unwrap(), Vec::<String>::new());
    let proposed = store.proposals_since(time(1)).await.unwrap();
    assert_eq!(proposed.iter().map(|proposal| proposal.at).collect::<Vec<_>>(), [time(1), time(2)]);
}

/// Characters that a backend cannot store must not make texts unreadable.
async fn any_character_is_stored(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    let mut odd = change("a", "n\0ul", 1, ChangeState::Pending);
    odd.summary = "a\0b \u{1f4a9} \u{202e}".into();
    odd.idempotency_key = Some("k\0".into());
    let written = Draft { actor: "n\0ul".into(), ..draft(odd, None) };
    let body = written.body.clone();
    write(&*store, written).await.unwrap();
    let found = store.find_idempotent("n\0ul", "k\0").await.unwrap().unwrap();
    assert_eq!(serde_json::to_string(&*found).unwrap(), body);
    let narrow = ChangeCriteria { text: Some("b \u{1f4a9}".into()), ..ChangeCriteria::default() };
    assert_eq!(list_ids(&*store, &[], narrow).await, ["a"]);
    store.close();
    assert_eq!(location_of(dir.path()).verify_audit(None).unwrap().changes, 1);
}

fn finished(id: &str, second: i64, state: ChangeState) -> Draft {
    let mut change = change(id, "agent", 2, state);
    change.updated_at = time(second);
    draft(change, Some(ChangeState::Executing))
}

async fn prune(store: &dyn Store, pruning: Pruning) -> Result<(), WriteError> {
    crate::write(store, WriteRequest::Prune(pruning)).await
}

/// Returns a pruning request like the one that `review` prepares.
fn pruning(contents: &[Arc<Change>], changes: &[(String, u64, ChangeState)], events_to: u64) -> Pruning {
    let redaction = |change: &Arc<Change>| {
        let left = countersign_domain::changes::retention::redact(change, time(900));
        let body = serde_json::to_string(&left).unwrap();
        let details = json!({ "version": left.version, "changeHash": body_hash(&body) }).to_string();
        Redaction { id: left.id.clone(), version: left.version, state: left.state, body, details }
    };
    let deletion = |(id, version, state): &(String, u64, ChangeState)| Deletion {
        id: id.clone(),
        version: *version,
        state: *state,
        details: "{}".into(),
    };
    Pruning {
        at: time(900),
        redactions: contents.iter().map(redaction).collect(),
        deletions: changes.iter().map(deletion).collect(),
        events_to,
        events_details: "{}".into(),
    }
}

async fn pruning_removes_old_records_once(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    for id in ["old", "large", "young", "open"] {
        write(&*store, created(id)).await.unwrap();
    }
    let mut large = finished("large", 50, ChangeState::Rejected);
    let mut change = Change::clone(&large.change);
    change.summary = "x".repeat(100_000);
    large = Draft { kind: EventKind::Rejected, ..draft(change, Some(ChangeState::Pending)) };
    for done in [finished("old", 10, ChangeState::Applied), large, finished("young", 90, ChangeState::Applied)] {
        write(&*store, done).await.unwrap();
    }
    let ids = |old: &PrunableRecords| old.contents.iter().map(|change| change.id.clone()).collect::<Vec<_>>();
    let before = |contents, large, changes| PruningCutoffs { contents, large, changes, events: None };
    let old = store.find_prunable(before(Some(time(20)), Some((time(60), 70_000)), None)).await.unwrap();
    assert_eq!((ids(&old), old.more), (vec!["old".to_owned(), "large".into()], false));
    assert!(
        store.find_prunable(before(Some(time(20)), Some((time(60), 200_000)), None)).await.unwrap().contents.len() == 1
    );
    let before_pruning = store.heads().await.unwrap();
    prune(&*store, pruning(&old.contents, &[], 0)).await.unwrap();
    let again = prune(&*store, pruning(&old.contents, &[], 0)).await;
    assert!(matches!(again, Err(WriteError::Conflict)), "{again:?}");
    let after = store.heads().await.unwrap();
    assert_eq!((after.event, after.audit.seq), (before_pruning.event, before_pruning.audit.seq + 2));
    assert!(store.get("old").await.unwrap().unwrap().redacted.is_some());
    assert!(store.find_prunable(before(Some(time(60)), None, None)).await.unwrap().contents.is_empty());

    let old = store.find_prunable(before(None, None, Some(time(60)))).await.unwrap();
    let mut going: Vec<&str> = old.changes.iter().map(|(id, ..)| id.as_str()).collect();
    going.sort_unstable();
    assert_eq!(going, ["large", "old"]);
    prune(&*store, pruning(&[], &old.changes, 0)).await.unwrap();
    assert!(store.get("old").await.unwrap().is_none());
    let narrow = ChangeCriteria { text: Some("create".into()), ..ChangeCriteria::default() };
    assert_eq!(list_ids(&*store, &[], narrow).await, ["open", "young"], "deleted changes are not found");

    let events = PruningCutoffs { events: Some(time(5000)), ..PruningCutoffs::default() };
    let old = store.find_prunable(events).await.unwrap();
    assert_eq!(old.events_to, 6, "the newest event remains, so that the numbers continue");
    prune(&*store, pruning(&[], &[], 99)).await.unwrap();
    let left: Vec<u64> = store.events_after(0, 9).await.unwrap().iter().map(|event| event.seq).collect();
    assert_eq!(left, [7]);
    assert_eq!(write(&*store, created("new")).await.unwrap().seq, 8);
    assert_eq!(store.backup_time().await.unwrap(), None);
    store.close();
    let verified = location_of(dir.path()).verify_audit(None).unwrap();
    assert_eq!((verified.entries, verified.changes), (7 + 2 + 2 + 1 + 1, 3));
}

async fn write_record(store: &dyn Store, record: Record, restored: bool) -> Result<(), WriteError> {
    crate::write(store, if restored { WriteRequest::Restored(record) } else { WriteRequest::Record(record) }).await
}

fn rule_record(event: &'static str, rules: Vec<StandingRule>) -> Record {
    Record { rules, ..Record::new(event, time(7), "alice", r#"{"by":"hand"}"#.into()) }
}

fn rule(id: &str, verdict: &str) -> StandingRule {
    let rule = json!({
        "id": id, "verdict": verdict, "provider": "fs", "tool": "write", "toolHash": "sha256:0", "createdBy": "alice",
        "createdByRole": "reviewer", "createdAt": time(0), "uses": 0,
    });
    serde_json::from_value(rule).unwrap()
}

fn policy(digest: &str) -> PolicySnapshot {
    PolicySnapshot {
        digest: digest.into(),
        refused: Some("other".into()),
        body: "{\"default\":\"it's 'deny'\"}".into(),
    }
}

async fn policy_is_kept_after_reopening(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    assert_eq!(store.policies().await.unwrap(), PolicySnapshots::default());
    for digest in ["first", "second"] {
        store.save_policy(policy(digest), false).await.unwrap();
    }
    let heads = store.heads().await.unwrap();
    assert_eq!(heads.audit.seq, 2, "each save has an audit entry");
    store.close();
    let store = location_of(dir.path()).open().unwrap();
    let found = store.policies().await.unwrap();
    // On a server, each opening is a new node without its own policy, but all nodes share the newest policy.
    assert_eq!(found.newest, Some(policy("second")));
    assert!(found.own.is_none_or(|own| own == policy("second")));
    assert_eq!(store.heads().await.unwrap(), heads, "reading writes no entry");
    store.save_policy(policy("third"), true).await.unwrap();
    let third = Some(policy("third"));
    assert_eq!(
        store.policies().await.unwrap(),
        PolicySnapshots { own: third.clone(), newest: third, has_audit_entry: true }
    );
    store.close();
    assert!(location_of(dir.path()).verify_audit(None).unwrap().covered.policy);
    assert!(store.save_policy(policy("fourth"), true).await.is_err());
}

async fn pins_and_rules_are_kept_with_entries(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let location = location_of(dir.path());
    let store = location.open().unwrap();
    let pins = PinStore::open(Arc::clone(&store)).await.unwrap();
    let tool = countersign_domain::policy::pins::Definition {
        name: "read".into(),
        hash: "h1".into(),
        text: r#"{"a":"\u0000"}"#.into(),
    };
    pins.accept(("fs", "behind"), std::slice::from_ref(&tool), "alice").await.unwrap();
    pins.revoke("fs", &[tool], "bob").await.unwrap();
    assert_eq!(store.pins().await.unwrap().servers, pins.snapshot().servers);
    write_record(
        &*store,
        rule_record("standing_rule_created", vec![rule("srl_1", "allow"), rule("srl_2", "deny")]),
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

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn api_key(id: &str, role: Role) -> ApiKey {
    ApiKey {
        id: id.into(),
        name: "alice".into(),
        role,
        owner: (role == Role::Agent).then(|| "Alice Ä.".into()),
        created_at: time(0),
        last_used_at: None,
        revoked_at: None,
    }
}

fn key_is_found_by_hash_until_revoked(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let gateway = location_of(dir.path()).credentials().unwrap();
    let tool = location_of(dir.path()).credentials().unwrap();
    for (n, role) in [Role::Agent, Role::Reviewer, Role::Viewer, Role::Admin].into_iter().enumerate() {
        tool.insert(&api_key(&format!("key_{n}"), role), &[u8::try_from(n).unwrap(); 32]).unwrap();
    }
    assert!(tool.insert(&api_key("key_9", Role::Agent), &[1; 32]).is_err(), "a secret belongs to one key");
    assert_eq!(gateway.find(&[1; 32]).unwrap(), Some((api_key("key_1", Role::Reviewer), [1; 32])));
    assert_eq!(gateway.find(&[0; 32]).unwrap().unwrap().0.owner.as_deref(), Some("Alice Ä."));
    assert_eq!(gateway.find(&[9; 32]).unwrap(), None);
    assert_eq!(gateway.list().unwrap().len(), 4);
    assert!(tool.revoke("key_1", time(5)).unwrap());
    assert!(!tool.revoke("key_1", time(6)).unwrap() && !tool.revoke("key_7", time(6)).unwrap());
    // A revocation by another process takes effect within a second.
    let deadline = Instant::now() + Duration::from_secs(60);
    while gateway.find(&[1; 32]).unwrap().unwrap().0.revoked_at != Some(time(5)) {
        assert!(Instant::now() < deadline, "another process revoked it");
        std::thread::sleep(Duration::from_millis(10));
    }
    let active = gateway.active_roles().unwrap();
    assert_eq!((active.len(), active.get("key_1"), active.get("key_3")), (3, None, Some(&Role::Admin)));
}

fn key_use_is_recorded_once_a_minute(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let keys = location_of(dir.path()).credentials().unwrap();
    keys.insert(&api_key("k", Role::Agent), &[1; 32]).unwrap();
    let used = |now| {
        keys.touch(&keys.find(&[1; 32]).unwrap().unwrap().0, now).unwrap();
        keys.find(&[1; 32]).unwrap().unwrap().0.last_used_at
    };
    assert_eq!(used(time(10)), Some(time(10)));
    assert_eq!(used(time(69)), Some(time(10)));
    assert_eq!(used(time(70)), Some(time(70)));
}

fn code_is_taken_by_one_caller(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let keys = location_of(dir.path()).credentials().unwrap();
    keys.put_code(&[1; 32], time(0), time(60)).unwrap();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| location_of(dir.path()).credentials().unwrap().take_code(&[1; 32], time(59)).unwrap())
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(outcomes.iter().filter(|o| **o == CodeOutcome::Taken).count(), 1);
    assert_eq!(outcomes.iter().filter(|o| **o == CodeOutcome::AlreadyUsed).count(), 7);
    keys.put_code(&[2; 32], time(0), time(60)).unwrap();
    assert_eq!(keys.take_code(&[2; 32], time(60)).unwrap(), CodeOutcome::Expired);
    assert_eq!(keys.take_code(&[3; 32], time(0)).unwrap(), CodeOutcome::Unknown);
    keys.put_code(&[4; 32], time(3 * 86_400), time(3 * 86_400 + 60)).unwrap();
    assert_eq!(keys.take_code(&[1; 32], time(1)).unwrap(), CodeOutcome::Unknown, "old codes are deleted");
}

fn sign_in_is_kept_until_deleted(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let sign_in = |id: u8, cookie: u8, key: Option<SecretHash>| SignIn {
        id: [id; 32],
        cookie: [cookie; 32],
        principal: Arc::new(Principal {
            name: format!("alice {id}"),
            role: Role::Reviewer,
            key_id: key.map(|_| "k1".into()),
            owner: Some("Alice Ä.".into()),
        }),
        key,
        last_used: time(i64::from(id)),
    };
    let keys = location_of(dir.path()).credentials().unwrap();
    keys.put_sign_in(&sign_in(1, 9, None), &[]).unwrap();
    keys.put_sign_in(&sign_in(2, 9, Some([7; 32])), &[]).unwrap();
    let keys = location_of(dir.path()).credentials().unwrap();
    assert_eq!(keys.sign_in(&[2; 32]).unwrap(), Some(sign_in(2, 9, Some([7; 32]))));
    keys.use_sign_in(&[2; 32], time(50)).unwrap();
    keys.use_sign_in(&[5; 32], time(50)).unwrap();
    assert_eq!(keys.sign_in(&[2; 32]).unwrap().unwrap().last_used, time(50));
    assert_eq!(keys.sign_ins().unwrap().len(), 2);
    keys.put_sign_in(&sign_in(3, 8, None), &[[1; 32], [5; 32]]).unwrap();
    assert_eq!(keys.sign_in(&[1; 32]).unwrap(), None);
    keys.forget_sign_ins(&[[2; 32], [3; 32]]).unwrap();
    assert!(keys.sign_ins().unwrap().is_empty());
}

/// Changes of keys are recorded in the chain, even while the store is open.
fn key_changes_have_audit_entries(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let location = location_of(dir.path());
    let store = location.open().unwrap();
    let keys = location.credentials().unwrap();
    keys.insert(&api_key("k1", Role::Viewer), &[1; 32]).unwrap();
    keys.insert(&api_key("k2", Role::Agent), &[2; 32]).unwrap();
    assert!(keys.revoke("k2", time(1)).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(write(&*store, created("a"))).unwrap();
    store.close();
    let verified = location.verify_audit(None).unwrap();
    assert_eq!((verified.entries, verified.changes, verified.covered.keys), (4, 1, 2));
    let mut events = Vec::new();
    let read = location.read_audit(|entry| -> Result<(), StoreError> {
        events.push(entry.event.clone());
        Ok(())
    });
    read.unwrap();
    assert_eq!(events, ["key_created", "key_created", "key_revoked", "created"]);
    assert_eq!(location.reviewer_records().unwrap().unwrap().keys.len(), 1, "one of the keys was revoked");
}

fn event(seq: u64) -> PendingDelivery {
    let (kind, event) = ("change.created".into(), "{}".into());
    let (key, subject) = (seq.to_string(), format!("chg_{}", seq % 2));
    PendingDelivery { id: 0, key, seq: Some(seq), kind, subject, event, attempts: 0, since: time(0) }
}

fn attempt(attempts: u32) -> AttemptResult {
    AttemptResult { attempts, status: Some(500), error: Some("no".into()) }
}

fn deliveries_wait_until_finished(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).deliveries().unwrap();
    assert_eq!(store.position("a", 7).unwrap(), 7, "a new webhook begins at the head");
    let live = PendingDelivery { key: "live".into(), seq: None, kind: "rule.created".into(), ..event(0) };
    assert_eq!(store.enqueue("a", 12, &[event(9), event(10), event(12)]).unwrap(), [1, 2, 3]);
    assert_eq!(store.enqueue("a", 12, &[event(12), live]).unwrap(), [3, 4], "no event is stored twice");
    store.record_attempt("a", 1, DeliveryState::Delivered, &attempt(1), time(1)).unwrap();
    store.record_attempt("a", 2, DeliveryState::GivenUp, &attempt(3), time(1)).unwrap();
    store.record_attempt("a", 3, DeliveryState::Waiting, &attempt(2), time(1)).unwrap();
    store.record_attempt("a", 4, DeliveryState::Delivered, &attempt(1), time(1)).unwrap();
    // A second instance sees the same state, like another process.
    let store = location_of(dir.path()).deliveries().unwrap();
    assert_eq!(store.position("a", 99).unwrap(), 12);
    assert_eq!(store.pending("a").unwrap(), [PendingDelivery { id: 3, attempts: 2, ..event(12) }]);
    let (again, waiting) = store.requeue_given_up("a", 5, time(9)).unwrap();
    assert_eq!((again, waiting.iter().map(|w| w.id).collect::<Vec<_>>()), (1, vec![2, 3]));
    assert_eq!((waiting[0].attempts, waiting[0].since), (0, time(9)), "its time starts again");
    assert_eq!(store.requeue_given_up("a", 5, time(9)).unwrap().0, 0);
    let states: Vec<_> = store.deliveries("a", None, 9).unwrap().iter().map(|d| (d.seq, d.state)).collect();
    let (waiting, delivered) = (DeliveryState::Waiting, DeliveryState::Delivered);
    assert_eq!(states, [(None, delivered), (Some(12), waiting), (Some(10), waiting), (Some(9), delivered)]);
    let delivery = &store.deliveries("a", Some(3), 1).unwrap()[0];
    assert_eq!((delivery.seq, delivery.change_id.as_deref()), (Some(10), Some("chg_0")));
    assert!(store.pending("b").unwrap().is_empty());
}

fn old_finished_deliveries_are_deleted(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).deliveries().unwrap();
    store.position("a", 0).unwrap();
    let last = webhooks::MAX_FINISHED_DELIVERIES + 64;
    store.enqueue("a", last, &(1..=last).map(event).collect::<Vec<_>>()).unwrap();
    for seq in 2..=last {
        store.record_attempt("a", seq, DeliveryState::Delivered, &attempt(1), time(1)).unwrap();
    }
    let all = store.deliveries("a", None, 5000).unwrap();
    assert!(all.len() as u64 <= webhooks::MAX_FINISHED_DELIVERIES + 17, "{}", all.len());
    assert_eq!(all.last().unwrap().seq, Some(1));
    store.retain_only(&["b".into()]).unwrap();
    assert!(store.deliveries("a", None, 9).unwrap().is_empty());
    assert_eq!(store.position("a", 99).unwrap(), 99, "the webhook counts as new");
}

/// Moves a store with all kinds of records, and checks both stores after the move.
async fn check_move(from: LocationOf, to: LocationOf) {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (from(old.path()), to(new.path()));
    let store = from.open().unwrap();
    let keys = from.credentials().unwrap();
    keys.insert(&api_key("k1", Role::Viewer), &[1; 32]).unwrap();
    keys.insert(&api_key("k2", Role::Agent), &[2; 32]).unwrap();
    keys.revoke("k2", time(1)).unwrap();
    for n in 0..40 {
        let mut change = change(&format!("chg_{n}"), "agent", 1, ChangeState::Pending);
        change.idempotency_key = (n % 2 == 0).then(|| format!("key {n}"));
        write(&*store, Draft { call_hash: Some(n.to_string()), ..draft(change, None) }).await.unwrap();
    }
    write(&*store, finished("chg_3", 10, ChangeState::Applied)).await.unwrap();
    write(&*store, updated("chg_5", 2, ChangeState::Pending, ChangeState::Approved)).await.unwrap();
    write_record(&*store, rule_record("standing_rule_created", vec![rule("srl_1", "allow")]), false).await.unwrap();
    store.save_policy(policy("in force"), false).await.unwrap();
    let pins = PinStore::open(Arc::clone(&store)).await.unwrap();
    let tool = countersign_domain::policy::pins::Definition { name: "t".into(), hash: "h".into(), text: "{}".into() };
    pins.accept(("fs", "behind"), std::slice::from_ref(&tool), "alice").await.unwrap();
    let deliveries = from.deliveries().unwrap();
    deliveries.position("a", 7).unwrap();
    deliveries.enqueue("a", 12, &[event(9), event(10)]).unwrap();
    deliveries.record_attempt("a", 1, DeliveryState::Delivered, &attempt(1), time(1)).unwrap();

    let ignore_progress = &mut |_: Progress| {};
    let mut overwrites = Vec::new();
    let move_modules = &mut |overwrite: bool| {
        overwrites.push(overwrite);
        Ok(())
    };
    // The lock that a gateway holds while it serves the store.
    let lock = lock_data_dir(old.path()).unwrap();
    let served = from.move_to(&to, move_modules, ignore_progress);
    assert!(matches!(served, Err(MoveError::Lock(_) | MoveError::Store(StoreError::Served))), "{served:?}");
    let (heads, live) = (store.heads().await.unwrap(), store.live_changes().await.unwrap());
    let listed = store.list(ListQuery { limit: 100, ..ListQuery::default() }).await.unwrap();
    store.close();
    drop((store, keys, deliveries, pins, lock));

    // An interrupted move continues with the next call, and until then the copy cannot be opened.
    let mut steps = 0;
    let interrupted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        from.move_to(&to, move_modules, &mut |progress: Progress| {
            assert!(progress.rows <= progress.of);
            steps += 1;
            assert!(steps < 4, "interrupted");
        })
    }));
    assert!(interrupted.is_err(), "{interrupted:?}");
    assert!(matches!(to.open().err(), Some(StoreError::IncompleteCopy)));
    let verified = from.move_to(&to, move_modules, ignore_progress).unwrap();
    assert_eq!((verified.head, verified.changes), (heads.audit, 40));
    for refused in [from.open().err(), from.credentials().err()] {
        assert!(matches!(refused, Some(StoreError::Moved | StoreError::OtherStore { .. })), "{refused:?}");
    }
    // Both directories belong to the new store, which keeps the id of the old one.
    to.claim_directory(None).unwrap();
    let identities = [&old, &new].into_iter().filter_map(|dir| StoreIdentity::read(dir.path()).unwrap());
    let identities: Vec<_> = identities.map(|known| (known.id, known.backend)).collect();
    assert!(identities.iter().all(|known| *known == identities[0] && !known.0.is_empty()), "{identities:?}");
    let again = from.move_to(&to, move_modules, ignore_progress);
    assert!(matches!(again, Err(MoveError::Moved)), "{again:?}");
    let elsewhere = tempfile::tempdir().unwrap();
    let again = from.move_to(&StoreLocation::directory(elsewhere.path()), move_modules, ignore_progress);
    assert!(matches!(again, Err(MoveError::Moved)), "{again:?}");
    assert_eq!(overwrites, [false, true], "each attempt moves the modules' data, and only later ones may overwrite");

    let store = to.open().unwrap();
    assert_eq!(store.heads().await.unwrap(), heads);
    let ids = |live: &[LiveChange]| {
        live.iter().map(|change| (change.id.clone(), change.call_hash.clone())).collect::<Vec<_>>()
    };
    assert_eq!(ids(&store.live_changes().await.unwrap()).len(), ids(&live).len());
    let now = store.list(ListQuery { limit: 100, ..ListQuery::default() }).await.unwrap();
    let text = |listing: &Listing| serde_json::to_string(&listing.items).unwrap();
    assert_eq!(text(&now), text(&listed));
    assert_eq!(store.find_idempotent("agent", "key 8").await.unwrap().unwrap().id, "chg_8");
    assert_eq!(store.events_after(38, 9).await.unwrap().len(), 4);
    assert_eq!(store.standing_rules().await.unwrap().len(), 1);
    assert_eq!(store.policies().await.unwrap().newest, Some(policy("in force")));
    assert!(store.pins().await.unwrap().pin("fs", "t").unwrap().accepted.is_some());
    let narrow = ChangeCriteria { text: Some("CHG_39".into()), ..ChangeCriteria::default() };
    assert_eq!(list_ids(&*store, &[], narrow).await, ["chg_39"]);
    let titles = store.search_audit(AuditSearch { change: Some("chg_5".into()), ..Default::default() }, None, 1);
    assert_eq!(titles.await.unwrap().entries[0].title.as_deref(), Some("Create"));
    let keys = to.credentials().unwrap();
    assert_eq!(keys.find(&[1; 32]).unwrap().unwrap().0, api_key("k1", Role::Viewer));
    assert_eq!(keys.active_roles().unwrap().len(), 1);
    let deliveries = to.deliveries().unwrap();
    assert_eq!(deliveries.position("a", 99).unwrap(), 12);
    assert_eq!(deliveries.pending("a").unwrap(), [PendingDelivery { id: 2, ..event(10) }]);
    assert_eq!(deliveries.enqueue("a", 13, &[event(13)]).unwrap(), [3], "the numbers continue");
    // Events and entries continue, too.
    assert_eq!(write(&*store, created("new")).await.unwrap().seq, heads.event + 1);
    write_record(&*store, rule_record("standing_rule_created", vec![rule("srl_2", "deny")]), false).await.unwrap();
    store.close();
    drop(keys);
    to.verify_audit(Some(heads.audit)).unwrap();
}

#[tokio::test]
async fn store_moves_between_all_backends() {
    let backends: [LocationOf; 2] = [StoreLocation::directory, server_database];
    for from in backends {
        for to in backends {
            check_move(from, to).await;
        }
    }
}

macro_rules! suite {
    ($backend:ident, $at:expr) => {
        mod $backend {
            suite!(@tests $at;
                writes_are_read_back_after_reopening, write_with_wrong_version_is_refused,
                ids_and_idempotency_keys_are_unique, failed_write_does_not_affect_others,
                callbacks_run_in_commit_order, one_of_many_concurrent_writes_succeeds, listings_are_filtered_paged_and_bounded,
                live_changes_and_counts_match_states, audit_pages_form_a_valid_chain, searches_find_changes_and_entries,
                any_character_is_stored, pruning_removes_old_records_once,
                pins_and_rules_are_kept_with_entries, policy_is_kept_after_reopening,
                target_stays_taken_after_an_unknown_outcome);
            suite!(@plain $at;
                store_behaves_like_the_model, key_is_found_by_hash_until_revoked,
                key_use_is_recorded_once_a_minute, sign_in_is_kept_until_deleted, code_is_taken_by_one_caller, key_changes_have_audit_entries,
                deliveries_wait_until_finished,
                old_finished_deliveries_are_deleted);
        }
    };
    (@tests $at:expr; $($name:ident),*) => {
        $(#[tokio::test] async fn $name() { super::$name($at).await; })*
    };
    (@plain $at:expr; $($name:ident),*) => {
        $(#[test] fn $name() { super::$name($at); })*
    };
}

/// Reads the source: each folder that implements the trait must have a `suite!` line below.
#[test]
fn every_backend_is_in_the_suite() {
    let suite = include_str!("suite.rs");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut backends = 0;
    for folder in std::fs::read_dir(source).unwrap().map(|entry| entry.unwrap().path()) {
        let text = std::fs::read_to_string(folder.join("mod.rs")).unwrap_or_default();
        if text.lines().any(|line| line.starts_with("impl StoreBackend for ")) {
            let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
            assert!(suite.lines().any(|line| line.starts_with(&format!("suite!({name}, "))), "{name}");
            backends += 1;
        }
    }
    assert!(backends > 0);
}

suite!(sqlite, super::StoreLocation::directory);
suite!(postgres, super::server_database);
