//! Deciding as the deputy of an absent person.

use super::*;
use crate::client::AbsentColleague;

#[test]
fn deputy_approves_what_the_absent_person_did_not_propose() {
    let shown = |proposer: &str| {
        let more = json!({"terms": {"reviewers": ["dba"]}, "proposer": {
            "principal": "bot", "owner": proposer, "keyId": "key_9", "clientName": null, "clientVersion": null,
            "session": null, "transport": "http", "revision": null,
        }});
        let change = change_with("chg_1", 1, "pending", &more);
        let mut app = app("reviewer", std::slice::from_ref(&change), (120, 24));
        app.me.deputy_for = vec![AbsentColleague { name: "Carol".into(), groups: vec!["dba".into()] }];
        open(&mut app, change);
        screen(&mut app)
    };
    assert!(shown("bob").contains("a approve"));
    let of_absent = shown("carol");
    assert!(
        of_absent.contains("Under this rule only dba can decide") && !of_absent.contains("a approve"),
        "{of_absent}"
    );
}
