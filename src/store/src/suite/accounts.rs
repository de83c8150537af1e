//! Accounts at servers, and registrations at authorization servers.

use super::*;

pub(super) fn account_of(server: &str, holder: &str, second: i64) -> StoredAccount {
    StoredAccount {
        key: AccountKey { server: server.into(), holder: holder.into() },
        target: "https://mcp.example".into(),
        issuer: "https://id.example".into(),
        sealed: format!("sealed {second}"),
        version: 0,
        refreshing_since: None,
        connected_at: time_at(second),
    }
}

/// Stores an account, and returns it with its version.
pub(super) fn connect(accounts: &dyn AccountStore, account: StoredAccount) -> StoredAccount {
    let version = accounts.connect_account(&account).unwrap();
    StoredAccount { version, ..account }
}

pub(super) fn account_is_kept_until_removed(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let accounts = location_of(dir.path()).accounts().unwrap();
    let alice = connect(&*accounts, account_of("crm", "Alice Ä.", 2));
    let gateway = connect(&*accounts, account_of("crm", "", 1));
    let notes = connect(&*accounts, account_of("notes", "Alice Ä.", 3));
    let accounts = location_of(dir.path()).accounts().unwrap();
    assert_eq!(accounts.account(&alice.key).unwrap(), Some(alice.clone()));
    assert_eq!(accounts.account(&account_of("notes", "", 0).key).unwrap(), None);
    assert_eq!(accounts.accounts().unwrap(), [gateway.clone(), alice.clone(), notes.clone()]);
    assert!(accounts.remove_account(&gateway.key).unwrap() && !accounts.remove_account(&gateway.key).unwrap());
    assert_eq!(accounts.accounts().unwrap(), [alice, notes]);
}

pub(super) fn new_connection_invalidates_old_versions(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let accounts = location_of(dir.path()).accounts().unwrap();
    let first = connect(&*accounts, account_of("crm", "alice", 1));
    assert!(accounts.begin_refresh(&first.key, first.version, time_at(5)).unwrap());
    let elsewhere = StoredAccount { target: "https://b.example".into(), ..account_of("crm", "alice", 6) };
    let second = connect(&*accounts, elsewhere);
    assert!(second.version > first.version);
    assert_eq!(accounts.account(&first.key).unwrap(), Some(second.clone()), "no refresh is under way");
    assert!(accounts.remove_account(&first.key).unwrap());
    assert!(!accounts.finish_refresh(&first.key, second.version, "late").unwrap());
    let third = connect(&*accounts, account_of("crm", "alice", 7));
    for version in [first.version, second.version] {
        assert!(!accounts.begin_refresh(&first.key, version, time_at(8)).unwrap());
        assert!(!accounts.finish_refresh(&first.key, version, "late").unwrap());
    }
    assert_eq!(accounts.account(&first.key).unwrap(), Some(third));
}

pub(super) fn tokens_are_renewed_by_one_caller(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let accounts = location_of(dir.path()).accounts().unwrap();
    let StoredAccount { key, version, .. } = connect(&*accounts, account_of("crm", "alice", 1));
    let other = connect(&*accounts, account_of("crm", "bob", 2));
    let begun = std::thread::scope(|scope| {
        let begin = || {
            let accounts = location_of(dir.path()).accounts().unwrap();
            accounts.begin_refresh(&key, version, time_at(5)).unwrap()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(begin)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).filter(|begun| *begun).count()
    });
    assert_eq!(begun, 1);
    let refreshing_since = || accounts.account(&key).unwrap().unwrap().refreshing_since;
    assert_eq!(refreshing_since(), Some(time_at(5)));
    accounts.cancel_refresh(&key, version + 1).unwrap();
    assert_eq!(refreshing_since(), Some(time_at(5)), "another version");
    accounts.cancel_refresh(&key, version).unwrap();
    assert_eq!(refreshing_since(), None);
    assert!(accounts.begin_refresh(&key, version, time_at(6)).unwrap());
    assert!(accounts.finish_refresh(&key, version, "renewed").unwrap());
    assert!(!accounts.finish_refresh(&key, version, "renewed twice").unwrap());
    assert!(!accounts.begin_refresh(&key, version, time_at(7)).unwrap());
    let renewed = accounts.account(&key).unwrap().unwrap();
    assert_eq!((renewed.sealed.as_str(), renewed.version, renewed.refreshing_since), ("renewed", version + 1, None));
    assert!(accounts.begin_refresh(&key, version + 1, time_at(7)).unwrap());
    assert_eq!(accounts.account(&other.key).unwrap(), Some(other));
}

pub(super) fn registration_is_replaced(location_of: LocationOf) {
    let dir = tempfile::tempdir().unwrap();
    let accounts = location_of(dir.path()).accounts().unwrap();
    for sealed in ["first", "second"] {
        accounts.put_registration("https://id.example", sealed).unwrap();
        assert_eq!(accounts.registration("https://id.example").unwrap().as_deref(), Some(sealed));
    }
    assert_eq!(accounts.registration("https://other.example").unwrap(), None);
}
