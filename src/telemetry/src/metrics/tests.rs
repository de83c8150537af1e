use super::*;

fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|l| l.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn unknown_method_has_the_label_other() {
    for method in Method::ALL {
        assert_eq!(MethodLabel::from_name(method.as_str()).as_str(), method.as_str());
    }
    assert_eq!(MethodLabel::from_name("tools/cal\n").as_str(), "other");
}

#[test]
fn recorded_values_are_rendered() {
    let metrics = Metrics::install().unwrap();
    let requests = RequestMetrics::get();
    requests.record(
        Transport::Sse,
        MethodLabel::from_name("prompts/get"),
        RequestOutcome::Ok,
        Duration::from_millis(3),
    );
    requests.record(Transport::Sse, MethodLabel::from_name("prompts/get"), RequestOutcome::Ok, Duration::from_secs(3));
    requests.record(Transport::Sse, MethodLabel::from_name("no/such"), RequestOutcome::ClientError, Duration::ZERO);
    requests.record_error(ErrorKind::ResumeTooLate);
    set_breaker_state("tracker", CircuitState::Open);
    CacheMetrics::for_cache(Cache::Reads).hit();
    CacheMetrics::for_cache(Cache::Reads).miss();
    let guard = GaugeGuard::connection(Transport::Stdio);
    let text = metrics.render();
    let value_of = |series: &str| value(&text, series).unwrap_or_else(|| panic!("{series} is not in:\n{text}"));
    assert_eq!(value_of(r#"countersign_requests_total{transport="sse",method="prompts/get",outcome="ok"}"#), 2.0);
    assert_eq!(value_of(r#"countersign_requests_total{transport="sse",method="other",outcome="client_error"}"#), 1.0);
    let bucket = r#"countersign_request_duration_seconds_bucket{transport="sse",method="prompts/get",le=""#;
    assert_eq!(value_of(&format!("{bucket}0.005\"}}")), 1.0);
    assert_eq!(value_of(&format!("{bucket}+Inf\"}}")), 2.0);
    assert_eq!(value_of(r#"countersign_errors_total{code="RESUME_TOO_LATE"}"#), 1.0);
    assert_eq!(value_of(r#"countersign_circuit_breaker_state{provider="tracker"}"#), 2.0);
    assert_eq!(value_of(r#"countersign_cache_hit_ratio{cache="reads"}"#), 0.5);
    assert_eq!(value_of(r#"countersign_connections_active{transport="stdio"}"#), 1.0);
    assert!(value_of("countersign_error_ratio") > 0.0);
    drop(guard);
    let text = metrics.render();
    assert_eq!(value(&text, r#"countersign_connections_active{transport="stdio"}"#), Some(0.0));
    // Every metric has its HELP text, and the first scrape contains the most important ones.
    for family in [
        "countersign_requests_total",
        "countersign_request_duration_seconds",
        "countersign_errors_total",
        "countersign_connections_active",
        "countersign_queue_length",
        "countersign_cache_hit_ratio",
    ] {
        assert!(text.contains(&format!("# HELP {family} ")), "{family}\n{text}");
        assert!(text.contains(&format!("# TYPE {family} ")), "{family}");
    }
}

#[test]
fn error_ratio_covers_last_minute() {
    let mut window = RatioWindow::default();
    let start = Instant::now();
    let at = |s: u64| start + Duration::from_secs(s);
    assert_eq!(window.update(at(0), (0, 0)), 0.0);
    assert_eq!(window.update(at(1), (10, 5)), 0.5);
    assert_eq!(window.update(at(30), (20, 5)), 0.25);
    assert_eq!(window.update(at(59), (20, 5)), 0.25);
    // The first half minute is over, and nothing failed since then.
    assert_eq!(window.update(at(90), (40, 5)), 0.0);
    assert_eq!(window.update(at(200), (40, 5)), 0.0);
    for s in 200..2000 {
        window.update(at(s), (40, 5));
    }
    assert!(window.samples.len() <= 32, "{}", window.samples.len());
}

#[test]
fn every_error_has_an_outcome() {
    assert_eq!(RequestOutcome::from_error_kind(ErrorKind::Parse), RequestOutcome::ClientError);
    assert_eq!(RequestOutcome::from_error_kind(ErrorKind::Internal), RequestOutcome::ServerError);
    assert_eq!(RequestOutcome::from_error_kind(ErrorKind::RateLimited), RequestOutcome::Refused);
    assert_eq!(RequestOutcome::from_error_kind(ErrorKind::Timeout), RequestOutcome::Timeout);
    assert!(!RequestOutcome::from_error_kind(ErrorKind::Cancelled).is_error());
}
