//! Tests of own hosts and origins, and of foreign ones in many spellings.

use super::*;
use OriginVerdict::{Absent, CorsAllowed, Forbidden, SameOrigin};

fn rules(change: impl FnOnce(&mut Config)) -> OriginRules {
    let mut config = Config::default();
    change(&mut config);
    OriginRules::new(&config)
}

fn verdict(rules: &OriginRules, origin: &str, host: &str) -> OriginVerdict {
    rules.check_origin(Some(origin.as_bytes()), host.as_bytes())
}

#[test]
fn loopback_hosts_are_own_on_any_port() {
    let rules = rules(|_| {});
    for host in [
        "127.0.0.1:8080",
        "localhost:8080",
        "LocalHost:8080",
        "localhost",
        "localhost:9000",
        "[::1]:8080",
        "[::1]",
        "localhost.:8080",
        "[0:0:0:0:0:0:0:1]:8080",
        "127.0.0.1",
    ] {
        assert!(rules.is_own_host(host.as_bytes()), "{host}");
    }
}

#[test]
fn other_hosts_are_not_own() {
    let rules = rules(|_| {});
    for host in [
        "",
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "evil.localhost",
        "localhost..",
        ".",
        "127.0.0.1@evil.example",
        "user@127.0.0.1:8080",
        "127.0.0.1:8080@evil.example",
        "127.0.0.1:",
        "127.0.0.1:80801",
        "127.0.0.1:-1",
        "127.0.0.1:+80",
        "127.1",
        "0x7f.0.0.1",
        "2130706433",
        "0177.0.0.1",
        "127.0.0.1 ",
        " 127.0.0.1",
        "127.0.0.1/",
        "127.0.0.1#",
        "127.0.0.1,evil.example",
        "[::1",
        "[::1]x",
        "[::1]8080",
        "[::1%25lo]:8080",
        "::1",
        "[::ffff:127.0.0.1]:8080",
        "127.0.0.1:8080:8080",
        "192.0.2.1:8080",
        "localhost%00.evil.example",
        "localhost\\evil",
        "127.0.0.2",
        "0.0.0.0:8080",
        "ⓛocalhost",
    ] {
        assert!(!rules.is_own_host(host.as_bytes()), "{host}");
    }
    assert!(!rules.is_own_host(b"\xff\xfe"));
    assert!(!rules.is_own_host("a.".repeat(5000).as_bytes()));
}

#[test]
fn configured_hosts_are_own_on_their_port() {
    let rules = rules(|c| {
        c.listen = ([192, 0, 2, 7], 8080).into();
        c.allowed_hosts = vec!["gw.example".into(), "other.example:8443".into(), "not a host".into()];
        c.public_url = Some("https://Gate.Example/base?x".into());
    });
    for host in
        ["192.0.2.7:8080", "gw.example", "GW.example.:1234", "other.example:8443", "gate.example", "gate.example:443"]
    {
        assert!(rules.is_own_host(host.as_bytes()), "{host}");
    }
    for host in
        ["192.0.2.8:8080", "other.example:8444", "other.example", "gate.example:8443", "xgw.example", "gw.example.evil"]
    {
        assert!(!rules.is_own_host(host.as_bytes()), "{host}");
    }
}

#[test]
fn unspecified_listen_serves_ip_but_no_foreign_name() {
    let rules = rules(|c| c.listen = ([0, 0, 0, 0], 8080).into());
    assert!(rules.is_own_host(b"192.0.2.7:8080"));
    assert!(rules.is_own_host(b"[2001:db8::7]:8080"));
    assert!(!rules.is_own_host(b"evil.example:8080"));
}

#[test]
fn origin_is_own_only_if_it_equals_requested_host() {
    let rules = rules(|_| {});
    assert_eq!(rules.check_origin(None, b"127.0.0.1:8080"), Absent);
    for (origin, host) in [
        ("http://127.0.0.1:8080", "127.0.0.1:8080"),
        ("http://localhost:8080", "localhost:8080"),
        ("HTTP://LOCALHOST:8080", "localhost:8080"),
        ("http://[::1]:8080", "[::1]:8080"),
        ("http://localhost", "localhost:80"),
        ("http://localhost:9000", "localhost:9000"),
    ] {
        assert_eq!(verdict(&rules, origin, host), SameOrigin, "{origin}");
    }
    for origin in [
        "null",
        "",
        "http://127.0.0.1:8081",
        "http://127.0.0.1",
        "https://127.0.0.1:8080",
        "http://localhost:8080",
        "http://evil.example:8080",
        "http://127.0.0.1:8080@evil.example",
        "http://evil@127.0.0.1:8080",
        "http://127.0.0.1:8080/",
        "http://127.0.0.1:8080/path",
        "http://127.0.0.1:8080.evil.example",
        "http://127.0.0.1.:8080",
        "127.0.0.1:8080",
        "file://",
        "http://",
        "http:///127.0.0.1:8080",
        "http://127.0.0.1:8080, http://evil.example",
        "http://127.0.0.1:8080 ",
        "http://127.0.0.1:08080x",
        "data:text/html,x",
        "chrome-extension://abc",
    ] {
        assert_eq!(verdict(&rules, origin, "127.0.0.1:8080"), Forbidden, "{origin}");
    }
    assert_eq!(rules.check_origin(Some(b"http://\xff"), b"127.0.0.1:8080"), Forbidden);
}

#[test]
fn foreign_host_header_does_not_allow_its_origin() {
    let rules = rules(|_| {});
    assert_eq!(verdict(&rules, "http://evil.example:8080", "evil.example:8080"), Forbidden);
}

#[test]
fn configured_origins_match_exactly() {
    let rules = rules(|c| {
        c.transports.http.cors_origins = vec![
            "https://app.example".into(),
            "http://localhost:5173".into(),
            "vscode-webview://Abc".into(),
            "*".into(),
        ];
    });
    assert!(rules.has_cors());
    for origin in ["https://app.example", "https://app.example:443", "http://localhost:5173", "vscode-webview://abc"] {
        assert_eq!(verdict(&rules, origin, "127.0.0.1:8080"), CorsAllowed, "{origin}");
    }
    for origin in [
        "http://app.example",
        "https://app.example:8443",
        "https://x.app.example",
        "http://localhost:5174",
        "https://evil.example",
    ] {
        assert_eq!(verdict(&rules, origin, "127.0.0.1:8080"), Forbidden, "{origin}");
    }
}

#[test]
fn own_origin_uses_scheme_of_browsers() {
    let tls = rules(|c| c.tls = Some(countersign_config::TlsConfig { cert: "c".into(), key: "k".into() }));
    assert_eq!(verdict(&tls, "https://localhost:8080", "localhost:8080"), SameOrigin);
    assert_eq!(verdict(&tls, "http://localhost:8080", "localhost:8080"), Forbidden);
    assert!(tls.browsers_use_https());
    let proxied = rules(|c| {
        c.behind_tls_proxy = true;
        c.allowed_hosts = vec!["gw.example".into()];
    });
    assert_eq!(verdict(&proxied, "https://gw.example", "gw.example"), SameOrigin);
    assert_eq!(verdict(&proxied, "http://gw.example", "gw.example"), Forbidden);
    assert_eq!(verdict(&proxied, "http://localhost:8080", "localhost:8080"), SameOrigin);
    let public = rules(|c| c.public_url = Some("https://gw.example/".into()));
    assert!(public.common_hosts.contains(&"gw.example".to_owned()));
    assert_eq!(verdict(&public, "https://gw.example", "127.0.0.1:8080"), SameOrigin, "a proxy may rewrite Host");
    assert!(public.browsers_use_https());
    assert!(!rules(|_| {}).browsers_use_https());
}

proptest::proptest! {
    /// The URL parser of a browser reads every accepted origin in the same way.
    #[test]
    fn origin_parser_agrees_with_browser_url_parser(
        text in r"(http|https|HTTP)://([a-z0-9@:./\\\[\]%#?-]{0,24}|(localhost|127\.0\.0\.1|\[::1\])(:8080|:80|)[.:0-9a-z@/\\?#]{0,3})",
    ) {
        let rules = rules(|_| {});
        for host in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "localhost"] {
            if verdict(&rules, &text, host) == SameOrigin {
                let (theirs, ours) = (url::Url::parse(&text).unwrap(), url::Url::parse(&format!("http://{host}")).unwrap());
                proptest::prop_assert_eq!(theirs.origin(), ours.origin(), "{}", text);
                proptest::prop_assert!(theirs.username().is_empty() && theirs.path() == "/");
            }
        }
    }

    #[test]
    fn own_host_is_loopback_to_browser_url_parser(
        text in r"[a-z0-9@:./\[\]%#?-]{0,24}|(localhost|127\.0\.0\.1|\[::1\])[.:0-9a-z@]{0,8}",
    ) {
        if rules(|_| {}).is_own_host(text.as_bytes()) {
            let url = url::Url::parse(&format!("http://{text}/")).unwrap();
            let name = url.host_str().unwrap().trim_end_matches('.').to_owned();
            proptest::prop_assert!(["localhost", "127.0.0.1", "[::1]"].contains(&name.as_str()), "{}", text);
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(origin: Vec<u8>, host: Vec<u8>) {
        let rules = rules(|c| c.allowed_hosts = vec!["gw.example".into()]);
        let _ = rules.is_own_host(&host);
        let _ = rules.check_origin(Some(&origin), &host);
    }
}
