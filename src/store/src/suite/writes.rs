//! Writes of changes: versions, order, claims of targets, and a comparison with a model.

use super::*;

pub(super) async fn writes_are_read_back_after_reopening(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    assert_eq!(store.heads().await.unwrap(), Heads::default());
    assert!(store.get("a").await.unwrap().is_none());
    let draft = created_draft("a");
    let body = draft.body.clone();
    let written = write(&*store, draft).await.unwrap();
    assert_eq!(written.seq, 1);
    let event: Value = serde_json::from_slice(&written.event).unwrap();
    assert_eq!(event, json!({ "type": "change.created", "seq": 1, "change": { "id": "a" } }));
    let read = store.get("a").await.unwrap().unwrap();
    assert_eq!(serde_json::to_string(&*read).unwrap(), body);
    assert_eq!(read.arguments.get(), r#"{ "a" :1.50}"#, "the arguments keep their bytes");
    let written = write(&*store, updated_draft("a", 2, ChangeState::Pending, ChangeState::Approved)).await.unwrap();
    assert_eq!(written.seq, 2);
    assert_eq!(store.get("a").await.unwrap().unwrap().state, ChangeState::Approved);
    let before = store.heads().await.unwrap();
    assert_eq!((before.event, before.audit.seq), (2, 2));
    store.close();
    assert!(!store.is_open());
    drop(store);

    let store = location_of(dir.path()).open().unwrap();
    assert_eq!(store.heads().await.unwrap(), before, "durable writes survive");
    assert_eq!(write(&*store, created_draft("b")).await.unwrap().seq, 3);
    let events = store.events_after(1, 10).await.unwrap();
    assert_eq!(
        events.iter().map(|e| (e.seq, e.kind.as_str())).collect::<Vec<_>>(),
        [(2, "change.approved"), (3, "change.created")]
    );
    assert_eq!(store.events_after(0, 1).await.unwrap().len(), 1);
    assert!(store.events_after(3, 10).await.unwrap().is_empty());
}

pub(super) async fn write_with_wrong_version_is_refused(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    write(&*store, created_draft("a")).await.unwrap();
    for wrong in [1, 3, 9] {
        let mut draft = updated_draft("a", 2, ChangeState::Pending, ChangeState::Approved);
        draft.expected = Some(wrong - 1);
        if wrong != 2 {
            assert!(matches!(write(&*store, draft).await, Err(WriteError::Conflict)));
        }
    }
    let unknown = updated_draft("b", 2, ChangeState::Pending, ChangeState::Approved);
    assert!(matches!(write(&*store, unknown).await, Err(WriteError::Conflict)));
    let heads = store.heads().await.unwrap();
    assert_eq!((heads.event, heads.audit.seq), (1, 1), "a refused write leaves no trace");
    write(&*store, updated_draft("a", 2, ChangeState::Pending, ChangeState::Approved)).await.unwrap();
}

pub(super) async fn ids_and_idempotency_keys_are_unique(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    let keyed = |id: &str, principal: &str, key: &str| {
        let mut change = change(id, principal, 1, ChangeState::Pending);
        change.idempotency_key = Some(key.into());
        draft_for(change, None)
    };
    write(&*store, keyed("a", "agent", "k")).await.unwrap();
    assert!(matches!(write(&*store, created_draft("a")).await, Err(WriteError::Duplicate)));
    assert!(matches!(write(&*store, keyed("b", "agent", "k")).await, Err(WriteError::Duplicate)));
    write(&*store, keyed("c", "other", "k")).await.unwrap();
    write(&*store, created_draft("d")).await.unwrap();
    write(&*store, created_draft("e")).await.unwrap();
    assert_eq!(store.find_by_idempotency_key("agent", "k").await.unwrap().unwrap().id, "a");
    assert_eq!(store.find_by_idempotency_key("other", "k").await.unwrap().unwrap().id, "c");
    assert!(store.find_by_idempotency_key("agent", "l").await.unwrap().is_none());
    assert_eq!(store.heads().await.unwrap().event, 4);
}

pub(super) async fn verification_is_kept_with_its_event(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let open = || location_of(dir.path()).open().unwrap();
    let store = open();
    create_approved(&*store, "a", "t").await;
    let claimant = store.nodes().claimant();
    write(&*store, claim_draft("a", claimant.clone(), "t")).await.unwrap();
    let after_run = |version, from, verification: Verification| {
        let draft = transition_draft("a", version, from, ChangeState::Applied, claimant.clone(), "t");
        let change = Change { verification: Some(verification), ..(*draft.change).clone() };
        draft_for(change, Some(from))
    };
    let applied = after_run(4, ChangeState::Executing, Verification::not_read());
    write(&*store, TransitionDraft { kind: EventKind::Applied, ..applied }).await.unwrap();
    let target = claim_draft("a", None, "t").change.target_hash();
    assert!(store.occupants(vec![target], Timestamp::now()).await.unwrap().is_empty(), "the target is free");
    let diff = DiffBuilder::new().field("f", "F", Some("approved"), Some("found\0")).finish();
    let verified = after_run(5, ChangeState::Applied, Verification::from_diff(diff));
    let draft = TransitionDraft { kind: EventKind::Verified, ..verified };
    let written = write(&*store, draft.clone()).await.unwrap();
    assert!(matches!(write(&*store, draft.clone()).await, Err(WriteError::Conflict)), "it is written once");
    store.close();
    drop(store);

    let store = open();
    let read = store.get("a").await.unwrap().unwrap();
    assert_eq!((read.state, &read.verification), (ChangeState::Applied, &draft.change.verification));
    let events = store.events_after(written.seq - 1, 10).await.unwrap();
    assert_eq!(events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), ["change.verified"]);
    let trail = store.audit_after(0, 100).await.unwrap();
    let entry = trail.last().unwrap();
    assert_eq!((entry.event.as_str(), entry.from, entry.to), ("verified", entry.to, Some(read.state)));
    store.close();
}

pub(super) async fn target_stays_taken_after_an_unknown_outcome(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let open = || location_of(dir.path()).open().unwrap();
    let store = open();
    let by = store.nodes().claimant();
    for id in ["a", "b", "c"] {
        create_approved(&*store, id, "file").await;
    }
    let claimed = async |store: &dyn Store, id: &str, by: &Option<Claimant>| {
        write(store, claim_draft(id, by.clone(), "file")).await.map(drop)
    };
    let lost = |id: &str, by: &Option<Claimant>, until: Timestamp| {
        let mut draft =
            transition_draft(id, 4, ChangeState::Executing, ChangeState::OutcomeUnknown, by.clone(), "file");
        let after = Arc::make_mut(&mut draft.change);
        after.target_taken_until = Some(until);
        TransitionDraft { body: serde_json::to_string(after).unwrap(), ..draft }
    };
    let target = claim_draft("a", None, "file").change.target_hash();
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
    let settled = transition_draft("a", 5, ChangeState::OutcomeUnknown, ChangeState::Failed, None, "file");
    write(&*store, settled).await.unwrap();
    assert_eq!(occupant(&*store).await, None, "a person has settled it");
    claimed(&*store, "b", &by).await.unwrap();
    let soon = Timestamp::from_millisecond(Timestamp::now().as_millisecond() + 300).unwrap();
    write(&*store, lost("b", &by, soon)).await.unwrap();
    while matches!(claimed(&*store, "c", &by).await, Err(WriteError::Busy)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(Timestamp::now() >= soon, "the target was taken until the end of its time");
    write(&*store, transition_draft("b", 5, ChangeState::OutcomeUnknown, ChangeState::Failed, None, "file"))
        .await
        .unwrap();
    assert_eq!(
        occupant(&*store).await,
        Some(("c".into(), None)),
        "a late settlement does not free the target of another change"
    );
    write(&*store, transition_draft("c", 4, ChangeState::Executing, ChangeState::Applied, by, "file")).await.unwrap();
    assert_eq!(occupant(&*store).await, None);
    store.close();
}

/// The writes are queued together, so that they probably share a transaction.
pub(super) async fn failed_write_does_not_affect_others(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    let answers: Vec<_> = (0..50)
        .flat_map(|n| {
            let id = format!("c{n}");
            [
                created_draft(&id),
                created_draft(&id),
                updated_draft("none", 2, ChangeState::Pending, ChangeState::Approved),
            ]
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

pub(super) async fn callbacks_run_in_commit_order(location_of: LocationOf) {
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
                        WriteRequest::Transition(created_draft(&format!("{thread}-{n}"))),
                        Box::new(move |result, _| seen.lock().unwrap().push(result.unwrap().seq)),
                    );
                }
            });
        }
    });
    store.close();
    assert_eq!(*seen.lock().unwrap(), (1..=400).collect::<Vec<_>>());
    assert!(matches!(write(&*store, created_draft("late")).await, Err(WriteError::Store(StoreError::Closed))));
    assert!(matches!(store.get("0-0").await, Err(StoreError::Closed)));
}

pub(super) async fn one_of_many_concurrent_writes_succeeds(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let store = location_of(dir.path()).open().unwrap();
    write(&*store, created_draft("a")).await.unwrap();
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
                    let request = updated_draft("a", 2, ChangeState::Pending, ChangeState::Approved);
                    store.submit(WriteRequest::Transition(request), done);
                }
            });
        }
    });
    store.close();
    assert_eq!(won.load(Ordering::SeqCst), 1);
}

/// Any sequence of writes has the same outcome as in a simple model.
pub(super) fn store_behaves_like_the_model(location_of: LocationOf) {
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
                (created_draft(&id), fits)
            } else {
                let fits = version > 0 && model.get(&id) == Some(&version);
                (updated_draft(&id, version + 1, ChangeState::Pending, ChangeState::Approved), fits)
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
