//! Moves of a store between backends.

use super::*;
use countersign_domain::changes::PlanStep;

/// Moves a store with all kinds of records, and checks both stores after the move.
async fn check_move(from: LocationOf, to: LocationOf) {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (from(old.path()), to(new.path()));
    let store = from.open().unwrap();
    let keys = from.credentials().unwrap();
    keys.insert(&api_key("k1", Role::Viewer), &[1; 32]).unwrap();
    keys.insert(&api_key("k2", Role::Agent), &[2; 32]).unwrap();
    keys.revoke("k2", time_at(1)).unwrap();
    for n in 0..40 {
        let mut change = change(&format!("chg_{n}"), "agent", 1, ChangeState::Pending);
        change.idempotency_key = (n % 2 == 0).then(|| format!("key {n}"));
        let plan = PlanStep { id: "plan_1".into(), title: "t".into(), reason: None, index: 0, last: true };
        change.plan = (n == 7).then_some(plan);
        write(&*store, TransitionDraft { call_hash: Some(n.to_string()), ..draft_for(change, None) }).await.unwrap();
    }
    write(&*store, finished_draft("chg_3", 10, ChangeState::Applied)).await.unwrap();
    write(&*store, updated_draft("chg_5", 2, ChangeState::Pending, ChangeState::Approved)).await.unwrap();
    write_record(&*store, rule_record("standing_rule_created", vec![standing_rule("srl_1", "allow")]), false)
        .await
        .unwrap();
    store.save_policy(policy_snapshot("in force"), false).await.unwrap();
    let pins = PinStore::open(Arc::clone(&store)).await.unwrap();
    let tool = countersign_domain::policy::pins::Definition { name: "t".into(), hash: "h".into(), text: "{}".into() };
    pins.accept(("fs", "behind"), std::slice::from_ref(&tool), None, "alice").await.unwrap();
    keys.put_absence(&absence("alice", "k1", "bob")).unwrap();
    keys.ensure_token_key("first").unwrap();
    let accounts = from.accounts().unwrap();
    let account = connect(&*accounts, account_of("crm", "alice", 1));
    assert!(accounts.begin_refresh(&account.key, account.version, time_at(2)).unwrap());
    accounts.put_registration("https://id.example", "sealed").unwrap();
    from.rule_counts().unwrap().add_rule_counts(&[rule_count("no-deletions", 1, 4)], time_at(0)).unwrap();
    let deliveries = from.deliveries().unwrap();
    deliveries.position("a", 7).unwrap();
    deliveries.enqueue("a", 12, &[feed_delivery(9), feed_delivery(10)]).unwrap();
    deliveries.record_attempt("a", 1, DeliveryState::Delivered, &attempt_result(1), time_at(1)).unwrap();

    let ignore_progress = &mut |_: Progress| {};
    let mut overwrites = Vec::new();
    let move_modules = &mut |overwrite: bool| {
        overwrites.push(overwrite);
        Ok(())
    };
    // The lock that a gateway holds while it serves the store.
    let lock = countersign_runtime::data_dir::lock_data_dir(old.path()).unwrap();
    let served = from.move_to(&to, move_modules, ignore_progress);
    assert!(matches!(served, Err(MoveError::Lock(_) | MoveError::Store(StoreError::AlreadyServed))), "{served:?}");
    let (heads, live) = (store.heads().await.unwrap(), store.live_changes().await.unwrap());
    let listed = store.list(ListQuery { limit: 100, ..ListQuery::default() }).await.unwrap();
    store.close();
    drop((store, keys, accounts, deliveries, pins, lock));

    // An interrupted move continues with the next call, and until then the copy cannot be opened.
    let mut steps = 0;
    let interrupted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        from.move_to(&to, move_modules, &mut |progress: Progress| {
            assert!(progress.copied <= progress.total);
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
    let steps = store.plan_states("plan_1").await.unwrap();
    assert_eq!(steps.iter().map(|step| (step.change.as_str(), step.last)).collect::<Vec<_>>(), [("chg_7", true)]);
    assert_eq!(store.find_by_idempotency_key("agent", "key 8").await.unwrap().unwrap().id, "chg_8");
    assert_eq!(store.events_after(38, 9).await.unwrap().len(), 4);
    assert_eq!(store.standing_rules().await.unwrap().len(), 1);
    assert_eq!(store.policies().await.unwrap().newest, Some(policy_snapshot("in force")));
    assert!(store.pins().await.unwrap().pin("fs", "t").unwrap().accepted.is_some());
    let criteria = ChangeCriteria { text: Some("CHG_39".into()), ..ChangeCriteria::default() };
    assert_eq!(list_ids(&*store, &[], criteria).await, ["chg_39"]);
    let titles = store.search_audit(AuditSearch { change: Some("chg_5".into()), ..Default::default() }, None, 1);
    assert_eq!(titles.await.unwrap().entries[0].title.as_deref(), Some("Create"));
    let keys = to.credentials().unwrap();
    assert_eq!(keys.find(&[1; 32]).unwrap().unwrap().0, api_key("k1", Role::Viewer));
    assert_eq!(keys.holders().unwrap().keys.len(), 1);
    assert_eq!(keys.absences().unwrap(), [absence("alice", "k1", "bob")]);
    assert_eq!(keys.ensure_token_key("second").unwrap(), "first", "the moved tokens are encrypted with the first key");
    let accounts = to.accounts().unwrap();
    let moved = StoredAccount { refreshing_since: Some(time_at(2)), ..account };
    assert_eq!(accounts.accounts().unwrap(), [moved]);
    assert_eq!(accounts.registration("https://id.example").unwrap().as_deref(), Some("sealed"));
    assert_eq!(to.rule_counts().unwrap().rule_counts(time_at(0)).unwrap()[0].1.allowed, 4);
    let deliveries = to.deliveries().unwrap();
    assert_eq!(deliveries.position("a", 99).unwrap(), 12);
    assert_eq!(deliveries.pending("a").unwrap(), [PendingDelivery { id: 2, ..feed_delivery(10) }]);
    assert_eq!(deliveries.enqueue("a", 13, &[feed_delivery(13)]).unwrap(), [3], "the numbers continue");
    // Events and entries continue, too.
    assert_eq!(write(&*store, created_draft("new")).await.unwrap().seq, heads.event + 1);
    write_record(&*store, rule_record("standing_rule_created", vec![standing_rule("srl_2", "deny")]), false)
        .await
        .unwrap();
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

#[test]
fn store_is_not_moved_to_itself() {
    let backends: [LocationOf; 2] = [StoreLocation::directory, server_database];
    for location_of in backends {
        let dir = tempfile::tempdir().unwrap();
        let refused = location_of(dir.path()).move_to(&location_of(dir.path()), &mut |_| Ok(()), &mut |_| {});
        assert!(matches!(refused, Err(MoveError::SameStore)), "{refused:?}");
    }
}
