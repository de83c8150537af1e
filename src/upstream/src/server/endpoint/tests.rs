use super::*;

fn breaker() -> Breaker {
    Breaker::new(BreakerConfig { threshold: 3, window: Duration::from_secs(30), cooldown: Duration::from_secs(10) })
}

fn fail(breaker: &Breaker, times: u32) {
    for _ in 0..times {
        breaker.admit().unwrap().record_failure();
    }
}

#[tokio::test(start_paused = true)]
async fn breaker_opens_at_threshold_and_closes_after_trial() {
    let breaker = breaker();
    fail(&breaker, 2);
    assert_eq!(breaker.state(), CircuitState::Closed);
    fail(&breaker, 1);
    assert_eq!(breaker.state(), CircuitState::Open);
    assert_eq!(breaker.admit().unwrap_err(), Duration::from_secs(10));
    tokio::time::advance(Duration::from_secs(4)).await;
    assert_eq!(breaker.admit().unwrap_err(), Duration::from_secs(6));
    tokio::time::advance(Duration::from_secs(6)).await;
    let trial = breaker.admit().unwrap();
    assert_eq!(breaker.state(), CircuitState::HalfOpen);
    assert!(breaker.admit().is_err(), "only one call is tried");
    trial.record_success();
    assert_eq!(breaker.state(), CircuitState::Closed);
    fail(&breaker, 2);
    assert_eq!(breaker.state(), CircuitState::Closed, "the count starts at zero again");
}

#[tokio::test(start_paused = true)]
async fn failed_trial_reopens_and_dropped_trial_is_repeated() {
    let breaker = breaker();
    fail(&breaker, 3);
    tokio::time::advance(Duration::from_secs(10)).await;
    breaker.admit().unwrap().record_failure();
    assert_eq!(breaker.admit().unwrap_err(), Duration::from_secs(10));
    tokio::time::advance(Duration::from_secs(10)).await;
    drop(breaker.admit().unwrap());
    assert_eq!(breaker.state(), CircuitState::Open);
    breaker.admit().unwrap().record_success();
    assert_eq!(breaker.state(), CircuitState::Closed);
}

#[tokio::test(start_paused = true)]
async fn old_or_rare_failures_keep_breaker_closed() {
    let breaker = breaker();
    fail(&breaker, 2);
    tokio::time::advance(Duration::from_secs(30)).await;
    fail(&breaker, 2);
    assert_eq!(breaker.state(), CircuitState::Closed, "the first two are too old");
    for _ in 0..100 {
        breaker.admit().unwrap().record_success();
    }
    fail(&breaker, 10);
    assert_eq!(breaker.state(), CircuitState::Closed, "most calls succeed");
}

#[tokio::test(start_paused = true)]
async fn outage_opens_breaker_despite_earlier_rare_failures() {
    let breaker = breaker();
    for _ in 0..10 {
        for _ in 0..100 {
            breaker.admit().unwrap().record_success();
        }
        fail(&breaker, 1);
        tokio::time::advance(Duration::from_secs(20)).await;
    }
    for _ in 0..3 {
        assert_eq!(breaker.state(), CircuitState::Closed, "too few failures count");
        fail(&breaker, 1);
        tokio::time::advance(Duration::from_secs(10)).await;
    }
    assert_eq!(breaker.state(), CircuitState::Open, "all recent calls failed");
}

#[tokio::test(start_paused = true)]
async fn required_trial_decides_breaker_state() {
    let breaker = breaker();
    tokio::time::advance(Duration::from_secs(60)).await;
    breaker.require_trial();
    assert_eq!(breaker.state(), CircuitState::HalfOpen);
    let trial = breaker.admit().unwrap();
    assert!(trial.is_trial() && breaker.admit().is_err(), "only one call is tried");
    breaker.require_trial();
    trial.record_success();
    assert_eq!(breaker.state(), CircuitState::Closed);
    breaker.require_trial();
    breaker.admit().unwrap().record_failure();
    assert_eq!(breaker.state(), CircuitState::Open);
    breaker.require_trial();
    assert!(breaker.admit().is_err(), "an open circuit stays open");
}

#[tokio::test(start_paused = true)]
async fn zero_threshold_disables_breaker() {
    let breaker =
        Breaker::new(BreakerConfig { threshold: 0, window: Duration::from_secs(1), cooldown: Duration::ZERO });
    fail(&breaker, 1000);
    assert_eq!(breaker.state(), CircuitState::Closed);
}
