//! What is checked when a step of a plan has its turn.

use std::sync::Arc;

use super::plans::*;
use crate::testing::*;
use countersign_domain::{
    changes::{ChangeState, ReviewVerdict},
    policy::{Decision, Verdict},
};

#[actix::test]
async fn filled_step_waits_for_a_look_although_it_is_allowed() {
    let bench = bench().await;
    let second = r#"{"target":"b","id":{"$from":0,"pointer":"/id"}}"#;
    let steps = propose_with(&bench, &[ABC[0], second, ABC[2]], |_, proposal| proposal.terms.quorum = 0).await;
    let filled = bench.wait_for_state(&steps[1].id, ChangeState::Pending).await;
    assert_eq!(filled.arguments.get(), r#"{"target":"b","id":"n-\"a\""}"#);
    assert_eq!((filled.terms.quorum, called_targets(&bench)), (1, vec!["a".to_owned()]));
    bench.decide(&filled, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&steps[2].id, ChangeState::Applied).await;
    assert_eq!(called_targets(&bench), ["a", "b", "c"]);
    bench.end().await;
}

#[actix::test]
async fn policy_is_asked_again_about_an_allowed_step() {
    let bench = bench().await;
    let steps = propose_with(&bench, &ABC[..2], |_, proposal| proposal.terms.quorum = 0).await;
    bench.wait_for_state(&steps[1].id, ChangeState::Applied).await;
    let decision = |verdict| Decision {
        verdict,
        rule: None,
        reason: "the rule changed".into(),
        mark: None,
        terms: Arc::default(),
        standing_rule: None,
        simulated: None,
    };
    *bench.fake.edit_decision.lock().unwrap() = Some(decision(Verdict::Review));
    let steps = propose_with(&bench, &ABC[..2], |_, proposal| proposal.terms.quorum = 0).await;
    let first = bench.wait_for_state(&steps[0].id, ChangeState::Pending).await;
    assert_eq!(first.terms.quorum, 1);
    *bench.fake.edit_decision.lock().unwrap() = Some(decision(Verdict::Deny));
    bench.decide(&first, ReviewVerdict::Approve).await.unwrap();
    bench.wait_for_state(&steps[1].id, ChangeState::Withdrawn).await;
    assert_eq!(bench.get(&steps[0].id).await.state, ChangeState::Applied, "the reviewer approved the first step");
    bench.end().await;
}

