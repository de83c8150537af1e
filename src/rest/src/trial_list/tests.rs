use super::*;
use crate::tests::Endpoints;
use countersign_domain::principal::Role;
use countersign_reload::testing::UNRECORDED_PERSON;

const FILE: &str = "dashboard: { edit: on }\nmcpServers:\n  a:\n    command: x\n";

fn running_trial(requester: &str) -> Trial {
    let requester = Arc::new(Principal::new(requester, Role::Admin));
    let work = TrialWork::Save { changes: Arc::default(), version: String::new() };
    Trial { state: TrialState::Running, ..Trial::new(&requester, work, String::new()).unwrap() }
}

#[test]
fn report_is_kept_although_consent_came_late() {
    let trials = ServerTrials::new(1);
    let mut trial = running_trial("root");
    let past = Timestamp::now() - MAX_AGE - SignedDuration::from_secs(1);
    (trial.at, trial.changed_at) = (past, past);
    let id = trial.id.clone();
    trials.add(trial).unwrap();
    trials.finish(&id, None, None);
    assert_eq!(trials.find(&id).unwrap().state, TrialState::Finished);

    trials.all.lock().unwrap()[0].changed_at = past;
    assert!(trials.find(&id).is_err(), "the report is kept for half an hour after the end");
}

#[actix::test]
async fn trial_is_not_listed_if_too_many_others_run() {
    let endpoints = Endpoints::open().await;
    endpoints.configure(FILE).await;
    let root = endpoints.key("root", Role::Admin);
    for requester in ["ann", "ann", "bob", "bob"] {
        endpoints.data.trials.add(running_trial(requester)).unwrap();
    }
    let body = json!({ "name": "b", "text": r#"{"command": "sh"}"# });
    for _ in 0..=MAX_OPEN_PER_PERSON {
        let refused = endpoints.post("/api/server-trials", &root, &body).await;
        assert_eq!((refused.problem(429).as_str(), refused.header("retry-after")), ("RATE_LIMITED", Some("60")));
        assert_eq!(endpoints.data.trials.lock().len(), MAX_RUNNING);
    }
    endpoints.close().await;
}

#[actix::test]
async fn request_that_cannot_be_recorded_does_not_wait() {
    let endpoints = Endpoints::open().await;
    endpoints.configure(FILE).await;
    let key = endpoints.key(UNRECORDED_PERSON, Role::Admin);
    let version = endpoints.data.reloader.read_file().await.unwrap().version();
    for (path, body) in [
        ("/api/server-trials", json!({ "name": "b", "text": r#"{"command": "sh"}"# })),
        ("/api/servers", json!({ "version": version, "text": r#"{"b": {"command": "sh"}}"# })),
    ] {
        let reply = endpoints.send_through_proxy("POST", path, &key, &body).await;
        assert_eq!(reply.problem(503), "STORE_UNAVAILABLE", "{path}");
        assert!(endpoints.data.trials.lock().is_empty(), "{path}");
    }
    endpoints.close().await;
}
