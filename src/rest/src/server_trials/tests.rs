use super::*;
use countersign_domain::principal::Role;

#[test]
fn report_is_kept_although_consent_came_late() {
    let trials = ServerTrials::new(1);
    let requester = Arc::new(Principal::new("root", Role::Admin));
    let work = TrialWork::Save { changes: Arc::default(), version: String::new() };
    let mut trial = Trial::new(&requester, work, <[String; 3]>::default()).unwrap();
    let past = Timestamp::now() - MAX_AGE - SignedDuration::from_secs(1);
    (trial.at, trial.changed_at, trial.state) = (past, past, TrialState::Running);
    let id = trial.id.clone();
    trials.add(trial).unwrap();
    trials.finish(&id, None, None);
    assert_eq!(trials.find(&id).unwrap().state, TrialState::Finished);

    trials.all.lock().unwrap()[0].changed_at = past;
    assert!(trials.find(&id).is_none(), "the report is kept for half an hour after the end");
}
