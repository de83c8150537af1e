use tokio_util::sync::CancellationToken;

use super::*;
use crate::testing::{RecordingListener, ScriptedConnector, error, result};

const MODERN: &str = r#"{"resultType":"complete","supportedVersions":["2025-11-25","2026-07-28"],"capabilities":{"tools":{}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"m","version":"1"}},"ttlMs":5000}"#;
const INITIALIZED: &str = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{ "x":1.0 }},"serverInfo":{"name":"l","version":"1"},"instructions":"do"}"#;

fn listener() -> Arc<dyn Listener> {
    Arc::new(RecordingListener::default())
}

async fn found(scripted: ScriptedConnector) -> (Result<Detected, LinkError>, Vec<String>) {
    let scripted = Arc::new(scripted);
    let detected = detect(scripted.clone(), &listener).await;
    (detected, scripted.sent_methods())
}

/// A server that answers discovery as said, and `handshake_revision` as a legacy one.
fn server(
    separate_probes: bool,
    discovery: impl Fn() -> Result<Response, LinkError> + Send + Sync + 'static,
) -> ScriptedConnector {
    ScriptedConnector::new(separate_probes, move |method, _| match method {
        "server/discover" => discovery(),
        "initialize" => result(INITIALIZED),
        other => panic!("{other}"),
    })
}

#[tokio::test]
async fn a_server_of_both_eras_is_spoken_to_in_the_stateless_one() {
    for separate_probes in [false, true] {
        let (detected, sent) = found(server(separate_probes, || result(MODERN))).await;
        let detected = detected.unwrap();
        assert_eq!((detected.era, detected.negotiated.revision), (Era::Modern, Revision::MODERN));
        assert_eq!(detected.negotiated.capabilities.get(), r#"{"tools":{}}"#);
        assert_eq!(detected.negotiated.server_info.unwrap().get(), r#"{"name":"m","version":"1"}"#);
        assert_eq!(detected.negotiated.ttl_ms, Some(5000));
        assert!(detected.link.is_some());
        assert_eq!(sent, ["connect", "server/discover", "opened 2026-07-28"]);
    }
}

#[tokio::test]
async fn what_is_no_discovery_is_a_legacy_server() {
    let status = |status| Err(LinkError::Status { status, body: String::new() });
    let answers: [fn() -> Result<Response, LinkError>; 8] = [
        || result("{}"),
        || result(r#"{"supportedVersions":["2025-11-25"],"capabilities":{}}"#),
        || result(r#"{"supportedVersions":"2026-07-28"}"#),
        || result("[]"),
        || error(-32601, None),
        || error(-32602, Some("{}")),
        || error(-32000, None),
        || Err(LinkError::Protocol("{}".into())),
    ];
    for answer in answers {
        for separate_probes in [false, true] {
            let (detected, sent) = found(server(separate_probes, answer)).await;
            let detected = detected.unwrap();
            assert_eq!((detected.era, detected.negotiated.revision), (Era::Legacy, Revision::V2025_06_18));
            assert_eq!(detected.negotiated.capabilities.get(), r#"{"tools":{ "x":1.0 }}"#);
            assert_eq!(detected.negotiated.instructions.as_deref(), Some("do"));
            assert_eq!(
                sent,
                [
                    "connect",
                    "server/discover",
                    "close",
                    "connect",
                    "initialize",
                    "opened 2025-06-18",
                    "notifications/initialized"
                ]
            );
        }
    }
    for code in [200, 202, 400, 404, 405, 406, 415, 422] {
        assert_eq!(found(server(false, move || status(code))).await.0.unwrap().era, Era::Legacy, "{code}");
    }
}

#[tokio::test]
async fn without_an_answer_there_is_no_verdict() {
    for code in [301, 307, 401, 403, 407, 429, 500, 502, 503] {
        let (detected, sent) =
            found(server(false, move || Err(LinkError::Status { status: code, body: String::new() }))).await;
        assert!(matches!(detected, Err(LinkError::Status { status, .. }) if status == code));
        assert_eq!(sent, ["connect", "server/discover", "close"]);
    }
    for error in [LinkError::Unreachable("x".into()), LinkError::Lost("x".into())] {
        assert!(found(server(false, move || Err(error.clone()))).await.0.is_err());
    }
    let with_status = || {
        let Ok(Response::Error(error)) = error(-32001, None) else { unreachable!() };
        Ok(Response::Error(RpcError { status: Some(401), ..error }))
    };
    assert!(matches!(found(server(false, with_status)).await.0, Err(LinkError::Status { status: 401, .. })));
}

#[tokio::test]
async fn a_child_that_dies_of_the_question_is_a_legacy_server() {
    let (detected, sent) = found(server(true, || Err(LinkError::Lost("it exited".into())))).await;
    assert_eq!(detected.unwrap().era, Era::Legacy);
    assert_eq!(sent[..4], ["connect", "server/discover", "close", "connect"]);
    assert!(found(server(true, || Err(LinkError::Unreachable("no such program".into())))).await.0.is_err());
}

#[tokio::test]
async fn what_comes_late_to_the_second_question_answers_no_call() {
    // Discovery is answered after all, once the second question was asked too.
    struct Late(ScriptedConnector, Arc<std::sync::Mutex<Vec<u64>>>, Arc<tokio::sync::Notify>);
    impl Connector for Late {
        fn connect<'a>(
            &'a self,
            unsolicited: Arc<dyn Listener>,
        ) -> futures_util::future::LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>> {
            Box::pin(async move {
                let link = self.0.connect(unsolicited).await?;
                Ok(Arc::new(LateLink(link, Arc::clone(&self.1), Arc::clone(&self.2))) as Arc<dyn Link>)
            })
        }
        fn kind(&self) -> crate::link::LinkKind {
            self.0.kind()
        }
        fn probe_apart(&self) -> bool {
            true
        }
        fn describe(&self) -> String {
            String::new()
        }
    }
    struct LateLink(Arc<dyn Link>, Arc<std::sync::Mutex<Vec<u64>>>, Arc<tokio::sync::Notify>);
    impl Link for LateLink {
        fn kind(&self) -> crate::link::LinkKind {
            self.0.kind()
        }
        fn request<'a>(
            &'a self,
            outgoing: &'a Outgoing,
            listener: Arc<dyn Listener>,
        ) -> futures_util::future::LocalBoxFuture<'a, Result<Response, LinkError>> {
            self.1.lock().unwrap().push(outgoing.id);
            Box::pin(async move {
                if &*outgoing.method != "server/discover" {
                    // Answered first: which question a server answers first says nothing.
                    self.2.notify_one();
                    return result(r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#);
                }
                self.2.notified().await;
                self.0.request(outgoing, listener).await
            })
        }
        fn notify<'a>(
            &'a self,
            method: &'a str,
            params: Option<&'a str>,
        ) -> futures_util::future::LocalBoxFuture<'a, Result<(), LinkError>> {
            self.0.notify(method, params)
        }
        fn opened(&self, negotiated: &Negotiated) {
            self.0.opened(negotiated);
        }
        fn closed(&self) -> CancellationToken {
            self.0.closed()
        }
        fn close(&self) {
            self.0.close();
        }
    }
    let ids = Arc::default();
    let late = Late(server(true, || result(MODERN)), Arc::clone(&ids), Arc::default());
    let detected = detect_within(Duration::ZERO, Arc::new(late), &listener).await.unwrap();
    assert_eq!((detected.era, detected.link.is_some()), (Era::Modern, true));
    // Calls on this link get the ids from 1 on; the first of them was taken for answered by a refused `handshake_revision`.
    let ids = ids.lock().unwrap().clone();
    assert_eq!(ids, [FIRST_ID, handshake::SECOND_ID]);
    const { assert!(handshake::SECOND_ID > 1 << 30) };
}

#[tokio::test]
async fn silence_is_a_legacy_server_too() {
    struct Silent(ScriptedConnector);
    impl Connector for Silent {
        fn connect<'a>(
            &'a self,
            unsolicited: Arc<dyn Listener>,
        ) -> futures_util::future::LocalBoxFuture<'a, Result<Arc<dyn Link>, LinkError>> {
            Box::pin(async move { Ok(Arc::new(SilentLink(self.0.connect(unsolicited).await?)) as Arc<dyn Link>) })
        }
        fn kind(&self) -> crate::link::LinkKind {
            self.0.kind()
        }
        fn probe_apart(&self) -> bool {
            self.0.probe_apart()
        }
        fn describe(&self) -> String {
            String::new()
        }
    }
    struct SilentLink(Arc<dyn Link>);
    impl Link for SilentLink {
        fn kind(&self) -> crate::link::LinkKind {
            self.0.kind()
        }
        fn request<'a>(
            &'a self,
            outgoing: &'a Outgoing,
            listener: Arc<dyn Listener>,
        ) -> futures_util::future::LocalBoxFuture<'a, Result<Response, LinkError>> {
            if &*outgoing.method == "server/discover" {
                return Box::pin(std::future::pending());
            }
            self.0.request(outgoing, listener)
        }
        fn notify<'a>(
            &'a self,
            method: &'a str,
            params: Option<&'a str>,
        ) -> futures_util::future::LocalBoxFuture<'a, Result<(), LinkError>> {
            self.0.notify(method, params)
        }
        fn opened(&self, negotiated: &Negotiated) {
            self.0.opened(negotiated);
        }
        fn closed(&self) -> CancellationToken {
            self.0.closed()
        }
        fn close(&self) {
            self.0.close();
        }
    }
    for separate_probes in [false, true] {
        let silent = Silent(ScriptedConnector::new(separate_probes, |_, _| result(INITIALIZED)));
        assert_eq!(
            detect_within(Duration::ZERO, Arc::new(silent), &listener).await.map(|found| found.era).unwrap(),
            Era::Legacy
        );
        // Nothing to either question.
        let dead = Silent(ScriptedConnector::new(separate_probes, |_, _| Err(LinkError::Lost("x".into()))));
        assert!(detect_within(Duration::ZERO, Arc::new(dead), &listener).await.is_err());
    }
}

#[tokio::test]
async fn errors_that_only_stateless_servers_know_are_asked_again() {
    for (code, data) in [
        (-32022, Some(r#"{"supported":["2026-07-28"],"requested":"2026-07-28"}"#)),
        (-32022, None),
        (-32021, Some(r#"{"requiredCapabilities":{"roots":{}}}"#)),
        (-32020, None),
    ] {
        let asked = std::sync::atomic::AtomicU32::new(0);
        let (detected, sent) = found(server(false, move || {
            if asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0 {
                error(code, data)
            } else {
                result(MODERN)
            }
        }))
        .await;
        assert_eq!(detected.unwrap().era, Era::Modern, "{code}");
        assert_eq!(sent, ["connect", "server/discover", "server/discover", "opened 2026-07-28"]);

        // It is modern for sure: there is no `handshake_revision`.
        let (detected, sent) = found(server(false, move || error(code, data))).await;
        assert!(matches!(detected, Err(LinkError::Protocol(_))), "{code}");
        assert_eq!(sent, ["connect", "server/discover", "server/discover", "close"]);
    }
}

#[tokio::test]
async fn versions_decide_after_an_unsupported_one() {
    let legacy = || error(-32022, Some(r#"{"supported":["2027-01-01","2025-11-25"],"requested":"2026-07-28"}"#));
    assert_eq!(found(server(false, legacy)).await.0.unwrap().era, Era::Legacy);
    let (detected, sent) = found(server(false, || error(-32022, Some(r#"{"supported":["2027-01-01"]}"#)))).await;
    assert!(matches!(detected, Err(LinkError::Protocol(_))));
    assert_eq!(sent, ["connect", "server/discover", "close"]);
}

#[tokio::test]
async fn the_older_transport_is_tried_where_post_is_refused() {
    for (status, works) in [(400, true), (404, true), (405, true), (406, false), (422, false)] {
        let older = Arc::new(ScriptedConnector { legacy_only: true, ..server(false, || panic!("not asked")) });
        let refuses = ScriptedConnector::new(false, move |_, _| Err(LinkError::Status { status, body: String::new() }));
        let (detected, _) = found(ScriptedConnector { fallback: Some(older.clone()), ..refuses }).await;
        assert_eq!(detected.is_ok(), works, "{status}");
        assert_eq!(!older.sent_methods().is_empty(), works);
    }
    // An error in JSON with such a status counts as well, and the first error is what is told in the end.
    let refuses = ScriptedConnector::new(false, |_, _| {
        let Ok(Response::Error(error)) = error(-32000, None) else { unreachable!() };
        Ok(Response::Error(RpcError { status: Some(400), ..error }))
    });
    let neither = Arc::new(ScriptedConnector::new(false, |_, _| Err(LinkError::Unreachable("nothing here".into()))));
    let (detected, _) = found(ScriptedConnector { fallback: Some(neither.clone()), ..refuses }).await;
    assert!(matches!(detected, Err(LinkError::Status { status: 400, .. })));
    assert!(!neither.sent_methods().is_empty());
}

#[tokio::test]
async fn a_transport_of_the_handshake_era_is_not_asked() {
    let only = ScriptedConnector { legacy_only: true, ..server(false, || panic!("not asked")) };
    assert_eq!(found(only).await.0.unwrap().era, Era::Legacy);
}

#[test]
fn the_envelope_is_json_and_says_who_asks() {
    let value: serde_json::Value = serde_json::from_str(&envelope("{}")).unwrap();
    let meta = &value["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    assert_eq!(meta["io.modelcontextprotocol/clientInfo"]["name"], "countersign");
    assert!(meta["io.modelcontextprotocol/clientCapabilities"].is_object());
}

#[tokio::test]
async fn a_server_of_one_revision_alone_is_found_whichever_it_is() {
    for only in Revision::ALL {
        let date = only.as_str();
        let supported = move || error(-32022, Some(&format!(r#"{{"supported":["{date}"]}}"#)));
        let strict = ScriptedConnector::new(false, move |method, outgoing| {
            let asked = std::str::from_utf8(&outgoing.body).unwrap().contains(date);
            match (method, only.era()) {
                ("server/discover", Era::Legacy) => error(-32601, None),
                ("server/discover" | "initialize", _) if !asked => supported(),
                ("server/discover", Era::Modern) => result(&format!(
                    r#"{{"resultType":"complete","supportedVersions":["{date}"],"capabilities":{{}}}}"#
                )),
                ("initialize", Era::Legacy) => {
                    result(&format!(r#"{{"protocolVersion":"{date}","capabilities":{{}},"serverInfo":{{}}}}"#))
                }
                other => panic!("{other:?}"),
            }
        });
        let detected = found(strict).await.0.unwrap();
        assert_eq!((detected.era, detected.negotiated.revision), (only.era(), only));
    }
}
