//! The verification of an applied change.

use super::*;

#[test]
fn applied_change_is_verified_once_and_stays_applied() {
    let succeed = |reads_back| {
        let event = ChangeEvent::Succeed { result: raw("{}"), reads_back };
        apply(&change(ChangeState::Executing), event, time_at(1)).unwrap().after
    };
    let unverified = succeed(false);
    assert_eq!(unverified.verification, None);
    let applied = succeed(true);
    assert_eq!(applied.verification, Some(Verification::not_read()));
    let diff = DiffBuilder::new().field("f", "F", Some("approved"), Some("found")).finish();
    let verify = |change: &Change, diff| {
        apply(change, ChangeEvent::Verify { verification: Verification::from_diff(diff) }, time_at(2))
    };
    assert_eq!(verify(&unverified, Diff::default()).unwrap_err(), IllegalTransition::NotReadBack);
    let step = verify(&applied, diff).unwrap();
    assert_eq!((step.kind, step.from, step.after.state), (EventKind::Verified, Some(applied.state), applied.state));
    assert_eq!((step.actor.as_str(), step.after.digest.as_str()), (SYSTEM, applied.digest.as_str()));
    assert_eq!(step.after.verification.as_ref().unwrap().verified, VerificationOutcome::Differs);
    assert_eq!(verify(&step.after, Diff::default()).unwrap_err(), IllegalTransition::NotReadBack);
    let as_approved = verify(&applied, Diff::default()).unwrap().after.verification.unwrap();
    assert_eq!((as_approved.verified, as_approved.diff), (VerificationOutcome::Matches, None));
}

#[test]
fn names_of_verification_outcomes_match_json() {
    for &outcome in VerificationOutcome::VARIANTS {
        assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.as_str());
    }
}
