//! People of an identity provider and their sessions.

use super::*;

const NAME: &str = "https://id.example#1";

fn session() -> ProviderSession {
    ProviderSession {
        issuer: "https://id.example".into(),
        subject: "1".into(),
        sid: Some("s1".into()),
        tokens: "sealed".into(),
        auth_time: Some(1_000),
        acr: Some("mfa".into()),
        has_refresh_token: true,
        ends_at: time_at(604_800),
    }
}

fn person(role: Option<Role>, group: &str) -> StoredPerson {
    let claims = Claims { groups: vec![group.into()], json: "{}".into(), ..Claims::default() };
    StoredPerson { name: NAME.into(), role, claims: Arc::new(claims), updated_at: time_at(1), revoked_at: None }
}

fn sign_in(id: u8, person: &StoredPerson) -> SignIn {
    let mut principal = person.principal().unwrap();
    session().add_authentication_to(&mut principal);
    SignIn {
        id: [id; 32],
        cookie: [9; 32],
        principal: Arc::new(principal),
        key: None,
        last_used: time_at(2),
        session: Some(session()),
        refreshed_at: Some(time_at(2)),
    }
}

pub(super) fn signed_in_person_has_current_role(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let keys = location_of(dir.path()).credentials().unwrap();
    assert_eq!(session().person(), NAME);
    let reviewer = person(Some(Role::Reviewer), "platform");
    keys.put_person(&reviewer).unwrap();
    assert_eq!(keys.person(NAME).unwrap(), Some(reviewer.clone()));
    keys.put_code(&[1; 32], Some(&session()), time_at(0), time_at(60)).unwrap();
    let code = |session| Some(StoredCode { session, expires_at: time_at(60), is_used: false });
    assert_eq!(keys.code(&[1; 32]).unwrap(), code(Some(session())));
    keys.put_code(&[2; 32], None, time_at(0), time_at(60)).unwrap();
    assert_eq!(keys.code(&[2; 32]).unwrap(), code(None), "a code of the local reviewer");
    assert_eq!(keys.code(&[3; 32]).unwrap(), None, "an unknown code signs nobody in");
    let first = sign_in(1, &reviewer);
    keys.put_sign_in(&first, &[]).unwrap();
    keys.put_sign_in(&sign_in(2, &reviewer), &[]).unwrap();
    assert_eq!(keys.sign_in(&[1; 32]).unwrap(), Some(first.clone()));
    let claims = first.principal.claims.as_ref().unwrap();
    assert_eq!((claims.auth_time, claims.acr.as_deref()), (Some(1_000), Some("mfa")));
    let without_time: ProviderSession = serde_json::from_value(serde_json::json!({
        "issuer": "https://id.example", "subject": "1", "sid": null, "tokens": "sealed", "has_refresh_token": false,
        "ends_at": time_at(604_800),
    }))
    .unwrap();
    assert_eq!((without_time.auth_time, without_time.acr), (None, None), "a session of an earlier version");
    let renewed = ProviderSession { tokens: "renewed".into(), ..session() };
    let viewer = person(Some(Role::Viewer), "guests");
    keys.renew_session(&[1; 32], &renewed, Some(&viewer)).unwrap();
    let first = keys.sign_in(&[1; 32]).unwrap().unwrap();
    assert_eq!((first.principal.role, first.session), (Role::Viewer, Some(renewed.clone())));
    let second = keys.sign_in(&[2; 32]).unwrap().unwrap();
    assert_eq!((second.principal, second.session), (first.principal, Some(session())));
    let holders = keys.holders().unwrap().keys;
    assert_eq!(
        holders[&person_key_id(NAME)],
        KeyHolder { role: Role::Viewer, claims: Some(Arc::clone(&viewer.claims)) }
    );
    keys.renew_session(&[1; 32], &renewed, Some(&person(None, ""))).unwrap();
    assert!(keys.sign_ins().unwrap().is_empty() && keys.holders().unwrap().keys.is_empty());
    keys.renew_session(&[1; 32], &renewed, Some(&viewer)).unwrap();
    assert_eq!(keys.sign_in(&[1; 32]).unwrap(), None, "an ended sign-in does not come back");
}

pub(super) fn refresh_is_claimed_by_one_caller(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let keys = location_of(dir.path()).credentials().unwrap();
    let reviewer = person(Some(Role::Reviewer), "platform");
    keys.put_person(&reviewer).unwrap();
    keys.put_sign_in(&sign_in(1, &reviewer), &[]).unwrap();
    let claims = std::thread::scope(|scope| {
        let claim = || {
            let keys: Arc<dyn Credentials> = location_of(dir.path()).credentials().unwrap();
            keys.claim_refresh(&[1; 32], time_at(2), time_at(62)).unwrap()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(claim)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).filter(|claimed| *claimed).count()
    });
    assert_eq!(claims, 1);
    assert_eq!(keys.sign_ins().unwrap()[0].refreshed_at, Some(time_at(62)));
    assert!(!keys.claim_refresh(&[2; 32], time_at(2), time_at(62)).unwrap());
}

pub(super) fn sign_in_follows_other_processes(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let [gateway, other] = [(); 2].map(|()| location_of(dir.path()).credentials().unwrap());
    let reviewer = person(Some(Role::Reviewer), "platform");
    gateway.put_person(&reviewer).unwrap();
    gateway.put_sign_in(&sign_in(1, &reviewer), &[]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let wait_until = |condition: &dyn Fn() -> bool| {
        while !condition() {
            assert!(Instant::now() < deadline, "another process stored it");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // A copy that has the key also has the sign-in, which was stored before.
    other.insert(&api_key("k", Role::Viewer), &[7; 32]).unwrap();
    wait_until(&|| gateway.holders().unwrap().keys.contains_key("k"));
    let role = || gateway.sign_in(&[1; 32]).unwrap().map(|sign_in| sign_in.principal.role);
    assert_eq!(role(), Some(Role::Reviewer));
    other.put_person(&person(Some(Role::Viewer), "guests")).unwrap();
    wait_until(&|| role() == Some(Role::Viewer));
    other.forget_sign_ins(&[[1; 32]]).unwrap();
    wait_until(&|| role().is_none());
}

pub(super) fn revoked_person_stays_revoked(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let location = location_of(dir.path());
    drop(location.open().unwrap());
    let keys = location.credentials().unwrap();
    let reviewer = person(Some(Role::Reviewer), "platform");
    keys.put_person(&reviewer).unwrap();
    keys.put_sign_in(&sign_in(1, &reviewer), &[]).unwrap();
    let accounts = location.accounts().unwrap();
    for holder in [NAME, "https://id.example#2", ""] {
        accounts.connect_account(&account_of("crm", holder, 3)).unwrap();
    }
    assert_eq!(keys.revoke_person(NAME, time_at(5)).unwrap(), 1);
    let holders: Vec<String> =
        accounts.accounts().unwrap().into_iter().map(|account| account.key.holder.into()).collect();
    assert_eq!(holders, ["", "https://id.example#2"]);
    keys.put_person(&reviewer).unwrap();
    let revoked = StoredPerson { revoked_at: Some(time_at(5)), ..reviewer.clone() };
    assert!(revoked.has_signed_in());
    assert_eq!((keys.people().unwrap(), revoked.principal()), (vec![revoked], None));
    keys.put_sign_in(&sign_in(2, &reviewer), &[]).unwrap();
    assert!(keys.sign_ins().unwrap().is_empty());
    assert_eq!(keys.revoke_person("https://id.example#2", time_at(6)).unwrap(), 0, "somebody who never signed in");
    assert!(!keys.person("https://id.example#2").unwrap().unwrap().has_signed_in());
    let holders = keys.holders().unwrap();
    assert_eq!((holders.keys.len(), holders.revoked_people.len()), (0, 2));
}

pub(super) fn last_key_of_an_owner_ends_accounts(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let location = location_of(dir.path());
    drop(location.open().unwrap());
    let (keys, accounts) = (location.credentials().unwrap(), location.accounts().unwrap());
    for (number, id, name, owner) in [
        (1, "key_1", "ann", None),
        (2, "key_2", "ci", Some("ann")),
        (3, "key_3", "bob", None),
        (4, "key_4", "x", Some(NAME)),
        (5, "key_5", "Ann", None),
    ] {
        let key = ApiKey { name: name.into(), owner: owner.map(Into::into), ..api_key(id, Role::Reviewer) };
        keys.insert(&key, &[number; 32]).unwrap();
    }
    for holder in ["ann", "ANN", "bob", NAME, ""] {
        accounts.connect_account(&account_of("crm", holder, 3)).unwrap();
    }
    let holders =
        || -> Vec<String> { accounts.accounts().unwrap().into_iter().map(|row| row.key.holder.into()).collect() };
    assert!(keys.revoke("key_1", time_at(5)).unwrap() && holders().contains(&"ann".to_owned()));
    assert!(keys.revoke("key_2", time_at(6)).unwrap() && !keys.revoke("key_2", time_at(7)).unwrap());
    assert!(holders().contains(&"ann".to_owned()), "a key of the owner in another spelling remains");
    assert!(keys.revoke("key_5", time_at(7)).unwrap());
    assert_eq!(holders(), ["", "bob", NAME], "the person of an identity provider needs no key");
    assert!(keys.revoke("key_4", time_at(8)).unwrap());
    assert_eq!(holders().len(), 3);
}

pub(super) fn token_is_used_once(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let keys = location_of(dir.path()).credentials().unwrap();
    let reviewer = person(Some(Role::Reviewer), "platform");
    keys.put_person(&reviewer).unwrap();
    let sign_in_again = || keys.put_sign_in(&sign_in(1, &reviewer), &[]).unwrap();
    let use_at = |token: u8, at| keys.use_token(&[token; 32], time_at(at), time_at(60), &[[1; 32]], &[]).unwrap();
    sign_in_again();
    assert!(use_at(1, 0));
    assert!(keys.sign_ins().unwrap().is_empty());
    sign_in_again();
    assert!(!use_at(1, 30));
    assert_eq!(keys.sign_ins().unwrap().len(), 1, "a token that was used before ends nothing");
    assert!(use_at(2, 30));
    assert!(keys.sign_ins().unwrap().is_empty());
}

pub(super) fn used_token_deletes_unused_codes(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let keys = location_of(dir.path()).credentials().unwrap();
    for (code, session, expires_at) in
        [(1, Some(session()), 60), (2, Some(session()), 60), (3, Some(session()), 30), (4, None, 60)]
    {
        keys.put_code(&[code; 32], session.as_ref(), time_at(0), time_at(expires_at)).unwrap();
    }
    assert_eq!(keys.take_code(&[2; 32], time_at(1)).unwrap(), CodeOutcome::Accepted);
    assert_eq!(keys.code_sessions(time_at(30)).unwrap(), [([1_u8; 32], session())]);
    assert!(keys.use_token(&[9; 32], time_at(30), time_at(60), &[], &[[1; 32], [2; 32]]).unwrap());
    assert_eq!(keys.take_code(&[1; 32], time_at(30)).unwrap(), CodeOutcome::Unknown);
    let used = StoredCode { session: Some(session()), expires_at: time_at(60), is_used: true };
    assert_eq!(keys.code(&[2; 32]).unwrap(), Some(used), "it is being used");
    assert_eq!(keys.take_code(&[4; 32], time_at(30)).unwrap(), CodeOutcome::Accepted);
}

/// Returns the absence of the owner of a key.
pub(super) fn absence(owner: &str, key: &str, deputy: &str) -> Absence {
    let principal = Principal {
        key_id: Some(key.into()),
        owner: Some(owner.into()),
        ..Principal::new(format!("{key} of {owner}"), Role::Reviewer)
    };
    let person = AbsentPerson::from_principal(&principal);
    Absence { person, deputy: deputy.into(), since: time_at(1), until: time_at(100) }
}

/// Returns the events of the trail about keys, people and absences.
fn events(location: &StoreLocation) -> Vec<String> {
    let mut events = Vec::new();
    let read = location.read_audit(&mut |entry| {
        events.push(entry.event.clone());
        Ok(())
    });
    read.unwrap();
    events
}

pub(super) fn absence_is_kept_until_it_ends(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let location = location_of(dir.path());
    drop(location.open().unwrap());
    let keys = location.credentials().unwrap();
    keys.put_absence(&absence("Alice \u{c4}.", "key_1", "bob")).unwrap();
    keys.put_absence(&absence("alice \u{e4}.", "key_2", "carol")).unwrap();
    let other_node = location_of(dir.path()).credentials().unwrap();
    keys.put_absence(&absence("bob", "key_3", "carol")).unwrap();
    let expected = [absence("alice \u{e4}.", "key_2", "carol"), absence("bob", "key_3", "carol")];
    assert_eq!(other_node.absences().unwrap(), expected, "a person has one absence, which other nodes see at once");
    assert!(other_node.end_absence("BOB", "bob").unwrap() && !keys.end_absence("bob", "bob").unwrap());
    assert_eq!(keys.absences().unwrap().len(), 1);
    assert_eq!(events(&location), ["away", "away", "away", "back"]);
    location.verify_audit(None).unwrap();
}

pub(super) fn revocation_ends_absences_and_deputyships(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let location = location_of(dir.path());
    let store = location.open().unwrap();
    let keys = location.credentials().unwrap();
    for (number, id) in [(1, "key_1"), (2, "key_2")] {
        keys.insert(&ApiKey { name: "Ann".into(), ..api_key(id, Role::Reviewer) }, &[number; 32]).unwrap();
    }
    let set_absences = || {
        for (owner, key, deputy) in
            [("ann", "key_1", "carol"), ("bob", "key_3", "ANN"), ("carol", "key_4", NAME), (NAME, "key_5", "dora")]
        {
            keys.put_absence(&absence(owner, key, deputy)).unwrap();
        }
    };
    let absent = || keys.absences().unwrap().iter().map(|row| row.person.person_name().to_owned()).collect::<Vec<_>>();
    set_absences();
    assert!(keys.revoke("key_1", time_at(5)).unwrap());
    assert_eq!(absent(), ["bob", "carol", NAME], "only the absence that the key set has ended");
    assert!(keys.revoke("key_2", time_at(6)).unwrap());
    assert_eq!(absent(), ["carol", NAME], "the last key of a deputy");
    keys.revoke_person(NAME, time_at(7)).unwrap();
    assert_eq!(absent(), [""; 0]);
    location.verify_audit(None).unwrap();
    set_absences();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(write_record(&*store, rule_record("restored", Vec::new()), true)).unwrap();
    assert_eq!(absent(), [""; 0], "nobody knows which have ended since the backup");
    store.close();
    location.verify_audit(None).unwrap();
}
