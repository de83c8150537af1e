//! Tests of who may approve: neither the proposer nor anybody twice, with whatever account.

use super::*;
use crate::changes::AbsentPerson;
use crate::principal::{Claims, person_key_id, subject_client_name, subject_name};

#[test]
fn editor_cannot_approve_if_other_required() {
    let approve = |change: &Change, name: &str, owner| {
        apply(change, ChangeEvent::Decide(vote(name, owner, ReviewVerdict::Approve, change.version)), time_at(2))
            .map(|t| t.after.state)
    };
    let edited_under = |terms: Terms| {
        let pending = Change { terms: terms.clone(), ..change(ChangeState::Pending) };
        let call = revised_call(r#"{"a":1}"#, "edited", terms);
        let edit = ChangeEvent::Edit { editor: principal_named("phone", Some("alice")), comment: None, call };
        apply(&pending, edit, time_at(1)).unwrap().after
    };
    let allowed = edited_under(Terms::default());
    assert_eq!(approve(&allowed, "phone", Some("alice")), Ok(ChangeState::Approved));
    let other = edited_under(Terms { edit: Editing::NeedsOtherApprover, ..Terms::default() });
    let two = edited_under(Terms { quorum: 2, ..Terms::default() });
    for change in [&other, &two] {
        for (name, owner) in [("phone", Some("alice")), ("ALICE", None), ("desk", Some("Alice"))] {
            assert_eq!(approve(change, name, owner), Err(IllegalTransition::EditedByApprover), "{name}");
        }
        let rejection = vote("alice", None, ReviewVerdict::Reject, change.version);
        assert!(apply(change, ChangeEvent::Decide(rejection), time_at(2)).is_ok());
    }
    assert_eq!(approve(&other, "bob", None), Ok(ChangeState::Approved));
    assert_eq!(approve(&two, "bob", None), Ok(ChangeState::Pending));
}

#[test]
fn sign_in_approves_own_agent_where_rule_allows_it() {
    let person = subject_name("https://id.example", "ada");
    let mut pending = change(ChangeState::Pending);
    pending.proposer = Proposer {
        principal: subject_client_name("https://id.example", "ada", "cli"),
        owner: Some(person.clone()),
        key_id: None,
        claims: Some(Arc::default()),
        ..pending.proposer
    };
    let approve = |change: &Change, name: &str, owner, key: Option<&str>| {
        let key_id = key.map(str::to_owned);
        let vote = ReviewDecision { key_id, ..vote(name, owner, ReviewVerdict::Approve, change.version) };
        apply(change, ChangeEvent::Decide(vote), time_at(1)).map(|transition| transition.after.state)
    };
    let signed_in = person_key_id(&person);
    assert_eq!(approve(&pending, &person, None, Some(&signed_in)), Err(IllegalTransition::SelfApproval));
    pending.terms.own_agents = true;
    let other_person = person_key_id("https://id.example#bob");
    for (name, owner, key) in [
        (person.as_str(), None, None),
        (&person, None, Some("key_1")),
        (&person, None, Some(other_person.as_str())),
        ("laptop", Some(person.as_str()), Some("key_1")),
        ("laptop", Some(person.as_str()), Some(signed_in.as_str())),
        (&pending.proposer.principal, Some(person.as_str()), None),
    ] {
        assert_eq!(approve(&pending, name, owner, key), Err(IllegalTransition::SelfApproval), "{name} {key:?}");
    }
    assert_eq!(approve(&pending, &person, None, Some(&signed_in)), Ok(ChangeState::Approved));
    let with_key = Proposer { key_id: Some("key_2".into()), claims: None, ..pending.proposer.clone() };
    let by_key = Change { proposer: with_key, ..pending.clone() };
    assert_eq!(approve(&by_key, &person, None, Some(&signed_in)), Err(IllegalTransition::SelfApproval));
    let in_person = Proposer { principal: person.clone(), owner: None, ..pending.proposer.clone() };
    let by_person = Change { proposer: in_person, ..pending.clone() };
    assert_eq!(approve(&by_person, &person, None, Some(&signed_in)), Err(IllegalTransition::SelfApproval));
}

#[test]
fn person_has_one_vote_and_none_on_own_change() {
    let mut pending = change(ChangeState::Pending);
    pending.proposer.owner = Some("carol".into());
    pending.terms.quorum = 3;
    let approve = |change: &Change, name, owner| {
        apply(change, ChangeEvent::Decide(vote(name, owner, ReviewVerdict::Approve, change.version)), time_at(1))
    };
    for (name, owner) in [("carol", None), ("desk", Some("carol")), ("agent", None), ("agent", Some("dave"))] {
        assert_eq!(approve(&pending, name, owner).unwrap_err(), IllegalTransition::SelfApproval, "{name} {owner:?}");
    }
    let voted = approve(&pending, "desk", Some("alice")).unwrap().after;
    for (name, owner) in [("alice", None), ("laptop", Some("alice")), ("desk", None)] {
        assert_eq!(approve(&voted, name, owner).unwrap_err(), IllegalTransition::AlreadyVoted, "{name} {owner:?}");
    }
    assert_eq!(approve(&voted, "bob", None).unwrap().after.approvals(), 2);
}

#[test]
fn another_claim_of_the_proposer_forbids_approval() {
    let names = vec!["https://id.example#oid".to_owned()];
    let claims = Some(Arc::new(Claims { other_names: names.clone(), ..Claims::default() }));
    let pending = change(ChangeState::Pending);
    let approve = |change: &Change, name: &str, other_names: &[String]| {
        let other_names = other_names.to_vec();
        let vote = ReviewDecision { other_names, ..vote(name, None, ReviewVerdict::Approve, change.version) };
        apply(change, ChangeEvent::Decide(vote), time_at(1)).map(|transition| transition.after)
    };
    let [first, second] = ["https://id.example#one", "https://id.example#two"];

    let proposer = Proposer { principal: first.into(), claims: claims.clone(), ..pending.proposer.clone() };
    for own_agents in [false, true] {
        let terms = Terms { own_agents, ..Terms::default() };
        let proposed = Change { proposer: proposer.clone(), terms, ..pending.clone() };
        assert_eq!(approve(&proposed, second, &names).unwrap_err(), IllegalTransition::SelfApproval);
        let mut edit = edit_by(second, None, "[]");
        if let ChangeEvent::Edit { editor, .. } = &mut edit {
            editor.claims.clone_from(&claims);
        }
        assert_eq!(apply(&proposed, edit, time_at(1)).unwrap_err(), IllegalTransition::SelfApproval);
        assert_eq!(approve(&proposed, second, &[]).unwrap().state, ChangeState::Approved);
    }

    let two = Change { terms: Terms { quorum: 2, ..Terms::default() }, ..pending };
    let voted = approve(&two, first, &names).unwrap();
    assert_eq!(approve(&voted, second, &names).unwrap_err(), IllegalTransition::AlreadyVoted);
    assert_eq!(approve(&voted, second, &[]).unwrap().state, ChangeState::Approved);
}

#[test]
fn deputy_and_absent_person_have_one_vote() {
    let mut pending = change(ChangeState::Pending);
    pending.terms.quorum = 3;
    let approve = |change: &Change, name: &str, absent: Option<&str>| {
        let deputy_for = absent.map(|name| AbsentPerson::from_principal(&principal_named("phone", Some(name))));
        let vote = ReviewDecision { deputy_for, ..vote(name, None, ReviewVerdict::Approve, change.version) };
        apply(change, ChangeEvent::Decide(vote), time_at(1)).map(|transition| transition.after)
    };
    let by_deputy = approve(&pending, "dora", Some("alice")).unwrap();
    for (name, absent) in [
        ("alice", None),
        ("phone", None),
        ("dora", None),
        ("dora", Some("bob")),
        ("erik", Some("Alice")),
        ("erik", Some("dora")),
    ] {
        assert_eq!(
            approve(&by_deputy, name, absent).unwrap_err(),
            IllegalTransition::AlreadyVoted,
            "{name} {absent:?}"
        );
    }
    assert_eq!(approve(&by_deputy, "bob", None).unwrap().approvals(), 2);
    let by_alice = approve(&pending, "alice", None).unwrap();
    assert_eq!(approve(&by_alice, "dora", Some("alice")).unwrap_err(), IllegalTransition::AlreadyVoted);
    assert_eq!(approve(&by_alice, "dora", Some("bob")).unwrap().approvals(), 2);
}

#[test]
fn deputy_of_the_proposer_or_of_a_barred_editor_cannot_approve() {
    let approve = |change: &Change, absent: AbsentPerson| {
        let deputy_for = Some(absent);
        let vote = ReviewDecision { deputy_for, ..vote("dora", None, ReviewVerdict::Approve, change.version) };
        apply(change, ChangeEvent::Decide(vote), time_at(2)).map(|transition| transition.after.state)
    };
    let absent = |name: &str| AbsentPerson::from_principal(&principal_named(name, None));
    let mut pending = change(ChangeState::Pending);
    pending.proposer.owner = Some("carol".into());
    assert_eq!(approve(&pending, absent("carol")), Err(IllegalTransition::SelfApproval));
    assert_eq!(approve(&pending, absent("alice")), Ok(ChangeState::Approved));
    // Not even where a person may approve what their own agent proposed.
    let person = subject_name("https://id.example", "ada");
    pending.terms.own_agents = true;
    pending.proposer = Proposer {
        principal: subject_client_name("https://id.example", "ada", "cli"),
        owner: Some(person.clone()),
        key_id: None,
        claims: Some(Arc::default()),
        ..pending.proposer
    };
    let signed_in = AbsentPerson { key_id: Some(person_key_id(&person)), ..absent(&person) };
    assert_eq!(approve(&pending, signed_in), Err(IllegalTransition::SelfApproval));

    let edited = apply(&change(ChangeState::Pending), edit_by("phone", Some("alice"), r#"{"a":1}"#), time_at(1));
    let mut edited = edited.unwrap().after;
    assert_eq!(approve(&edited, absent("alice")), Ok(ChangeState::Approved));
    edited.terms.edit = Editing::NeedsOtherApprover;
    assert_eq!(approve(&edited, absent("alice")), Err(IllegalTransition::EditedByApprover));
}

#[test]
fn absent_person_can_undo_the_approval_of_their_deputy() {
    let mut pending = change(ChangeState::Pending);
    pending.terms.undo_for = 600;
    let deputy_for = Some(AbsentPerson::from_principal(&principal_named("alice", None)));
    let vote = ReviewDecision { deputy_for, ..vote("dora", None, ReviewVerdict::Approve, pending.version) };
    let approved = apply(&pending, ChangeEvent::Decide(vote), time_at(1)).unwrap().after;
    let undo = |name: &str| {
        let event = ChangeEvent::Unapprove { reviewer: principal_named(name, None), all: false };
        apply(&approved, event, time_at(2)).map(|transition| transition.after.state)
    };
    assert_eq!(undo("bob"), Err(IllegalTransition::NotAnApprover));
    assert_eq!((undo("alice"), undo("dora")), (Ok(ChangeState::Pending), Ok(ChangeState::Pending)));
}
