//! Keys, codes and sign-ins.

use super::*;

pub(super) fn api_key(id: &str, role: Role) -> ApiKey {
    ApiKey {
        id: id.into(),
        name: "alice".into(),
        role,
        owner: (role == Role::Agent).then(|| "Alice Ä.".into()),
        created_by: Vec::new(),
        created_at: time_at(0),
        last_used_at: None,
        revoked_at: None,
    }
}

pub(super) fn key_is_found_by_hash_until_revoked(location_of: LocationOf) {
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
    assert_eq!(gateway.newest_holders().unwrap().keys.len(), 4, "no later than they are stored");
    assert!(tool.revoke("key_1", time_at(5)).unwrap());
    assert!(!tool.revoke("key_1", time_at(6)).unwrap() && !tool.revoke("key_7", time_at(6)).unwrap());
    // A revocation by another process takes effect within a second.
    let deadline = Instant::now() + Duration::from_secs(60);
    while gateway.find(&[1; 32]).unwrap().unwrap().0.revoked_at != Some(time_at(5)) {
        assert!(Instant::now() < deadline, "another process revoked it");
        std::thread::sleep(Duration::from_millis(10));
    }
    let active = gateway.holders().unwrap().keys;
    let admin = KeyHolder { role: Role::Admin, claims: None };
    assert_eq!((active.len(), active.get("key_1"), active.get("key_3")), (3, None, Some(&admin)));
}

pub(super) fn key_use_is_recorded_once_a_minute(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let keys = location_of(dir.path()).credentials().unwrap();
    keys.insert(&api_key("k", Role::Agent), &[1; 32]).unwrap();
    let used = |now| {
        keys.touch(&keys.find(&[1; 32]).unwrap().unwrap().0, now).unwrap();
        keys.find(&[1; 32]).unwrap().unwrap().0.last_used_at
    };
    assert_eq!(used(time_at(10)), Some(time_at(10)));
    assert_eq!(used(time_at(69)), Some(time_at(10)));
    assert_eq!(used(time_at(70)), Some(time_at(70)));
}

pub(super) fn code_is_taken_by_one_caller(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let keys = location_of(dir.path()).credentials().unwrap();
    keys.put_code(&[1; 32], None, time_at(0), time_at(60)).unwrap();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| location_of(dir.path()).credentials().unwrap().take_code(&[1; 32], time_at(59)).unwrap())
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(outcomes.iter().filter(|o| **o == CodeOutcome::Accepted).count(), 1);
    assert_eq!(outcomes.iter().filter(|o| **o == CodeOutcome::AlreadyUsed).count(), 7);
    keys.put_code(&[2; 32], None, time_at(0), time_at(60)).unwrap();
    assert_eq!(keys.take_code(&[2; 32], time_at(60)).unwrap(), CodeOutcome::Expired);
    assert_eq!(keys.take_code(&[3; 32], time_at(0)).unwrap(), CodeOutcome::Unknown);
    keys.put_code(&[4; 32], None, time_at(3 * 86_400), time_at(3 * 86_400 + 60)).unwrap();
    assert_eq!(keys.take_code(&[1; 32], time_at(1)).unwrap(), CodeOutcome::Unknown, "old codes are deleted");
}

pub(super) fn sign_in_is_kept_until_deleted(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let sign_in = |id: u8, cookie: u8, key: Option<SecretHash>| SignIn {
        id: [id; 32],
        cookie: [cookie; 32],
        principal: Arc::new(Principal {
            name: format!("alice {id}"),
            role: Role::Reviewer,
            key_id: key.map(|_| "k1".into()),
            owner: Some("Alice Ä.".into()),
            claims: None,
            key_creators: Vec::new(),
        }),
        key,
        last_used: time_at(i64::from(id)),
        session: None,
        refreshed_at: None,
    };
    let keys = location_of(dir.path()).credentials().unwrap();
    keys.put_sign_in(&sign_in(1, 9, None), &[]).unwrap();
    keys.put_sign_in(&sign_in(2, 9, Some([7; 32])), &[]).unwrap();
    let keys = location_of(dir.path()).credentials().unwrap();
    assert_eq!(keys.sign_in(&[2; 32]).unwrap(), Some(sign_in(2, 9, Some([7; 32]))));
    keys.use_sign_in(&[2; 32], time_at(50)).unwrap();
    keys.use_sign_in(&[5; 32], time_at(50)).unwrap();
    assert_eq!(keys.sign_in(&[2; 32]).unwrap().unwrap().last_used, time_at(50));
    assert_eq!(keys.sign_ins().unwrap().len(), 2);
    keys.put_sign_in(&sign_in(3, 8, None), &[[1; 32], [5; 32]]).unwrap();
    assert_eq!(keys.sign_in(&[1; 32]).unwrap(), None);
    keys.forget_sign_ins(&[[2; 32], [3; 32]]).unwrap();
    assert!(keys.sign_ins().unwrap().is_empty());
}

pub(super) fn creators_of_a_key_count_after_a_sign_in_with_it(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let keys = location_of(dir.path()).credentials().unwrap();
    let names = vec!["bob".to_owned(), "https://id.example#alice".to_owned()];
    let key = ApiKey { created_by: names.clone(), ..api_key("k1", Role::Reviewer) };
    keys.insert_by(&key, &[7; 32], "bob").unwrap();
    let keys = location_of(dir.path()).credentials().unwrap();
    assert_eq!(keys.find(&[7; 32]).unwrap(), Some((key, [7; 32])));
    let sign_in = SignIn {
        id: [1; 32],
        cookie: [2; 32],
        principal: Arc::new(Principal { key_id: Some("k1".into()), ..Principal::new("alice", Role::Reviewer) }),
        key: Some([7; 32]),
        last_used: time_at(0),
        session: None,
        refreshed_at: None,
    };
    keys.put_sign_in(&sign_in, &[]).unwrap();
    assert_eq!(keys.sign_in(&[1; 32]).unwrap().unwrap().principal.key_creators, names);
    assert_eq!(keys.sign_ins().unwrap()[0].principal.key_creators, names);
}

/// Changes of keys are recorded in the chain, even while the store is open.
pub(super) fn key_changes_have_audit_entries(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let location = location_of(dir.path());
    let store = location.open().unwrap();
    let keys = location.credentials().unwrap();
    keys.insert(&api_key("k1", Role::Viewer), &[1; 32]).unwrap();
    keys.insert(&api_key("k2", Role::Agent), &[2; 32]).unwrap();
    assert!(keys.revoke("k2", time_at(1)).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(write(&*store, created_draft("a"))).unwrap();
    store.close();
    let verified = location.verify_audit(None).unwrap();
    assert_eq!((verified.entries, verified.changes, verified.covered.keys), (4, 1, 2));
    let mut events = Vec::new();
    let read = location.read_audit(&mut |entry| {
        events.push(entry.event.clone());
        Ok(())
    });
    read.unwrap();
    assert_eq!(events, ["key_created", "key_created", "key_revoked", "created"]);
    assert_eq!(location.reviewer_records().unwrap().unwrap().holders.keys.len(), 1, "one of the keys was revoked");
}

pub(super) fn token_key_is_recorded_once_and_replaced_on_demand(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let open = || location_of(dir.path()).credentials().unwrap();
    assert_eq!(open().ensure_token_key("first").unwrap(), "first");
    assert_eq!(open().ensure_token_key("second").unwrap(), "first");
    open().replace_token_key("second").unwrap();
    assert_eq!(open().ensure_token_key("first").unwrap(), "second");
}
