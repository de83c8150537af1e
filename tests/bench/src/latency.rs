//! Measures a reviewer's latency while an agent makes large calls on several connections: large messages are processed
//! outside the threads that serve connections.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::{
    http::{ACCEPT, Http, post},
    process::{RunSettings, Server},
    report::{self, goal, line, percentile},
};

/// The agent's connections.
const CALLERS: usize = 4;

pub async fn run(setting: &RunSettings) -> Result<()> {
    let length = Duration::from_secs(if setting.quick { 3 } else { 15 });
    report::section("A reviewer's requests during calls with 300,000 keys", "scripts/bench latency");
    let gateway = Server::gateway(setting, &[]).await?;
    let key = gateway.reviewer(setting)?;
    let ask =
        format!("GET /api/changes HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {key}\r\n\r\n", gateway.port);
    let mut reviewer = Http::connect(gateway.port).await?;
    let mut quiet = Vec::new();
    for _ in 0..200 {
        quiet.push(timed(&mut reviewer, &ask).await?);
    }
    let call = large_call(gateway.port);
    let callers = tokio::task::LocalSet::new();
    let mut times = Vec::new();
    let calls = std::rc::Rc::new(std::cell::Cell::new(0_u64));
    callers
        .run_until(async {
            for _ in 0..CALLERS {
                let (call, port) = (call.clone(), gateway.port);
                let calls = std::rc::Rc::clone(&calls);
                tokio::task::spawn_local(async move {
                    let mut http = Http::connect(port).await?;
                    loop {
                        http.exchange(&call).await?;
                        calls.set(calls.get() + 1);
                    }
                    #[allow(unreachable_code, reason = "states the result type of the task")]
                    anyhow::Ok(())
                });
            }
            let end = Instant::now() + length;
            while Instant::now() < end {
                times.push(timed(&mut reviewer, &ask).await?);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            anyhow::Ok(())
        })
        .await?;
    ensure!(calls.get() > 0, "no call was answered");
    quiet.sort_unstable();
    times.sort_unstable();
    let millis = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    line("large calls", &format!("{:.1} a second", calls.get() as f64 / length.as_secs_f64()));
    line("p99 without them", &millis(percentile(&quiet, 0.99)));
    line("p50 with them", &millis(percentile(&times, 0.5)));
    let p99 = percentile(&times, 0.99);
    goal("p99 with them", millis(p99), "< 100 ms", p99 < Duration::from_millis(100));
    Ok(())
}

async fn timed(http: &mut Http, request: &str) -> Result<Duration> {
    let began = Instant::now();
    let (status, ..) = http.exchange(request.as_bytes()).await?;
    ensure!(status == 200, "the reviewer got {status}");
    Ok(began.elapsed())
}

fn large_call(port: u16) -> Vec<u8> {
    let members: Vec<String> = (0..300_000).map(|n| format!("\"k{n}\":{n}")).collect();
    let meta = concat!(
        r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
        r#""io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"#,
        r#""io.modelcontextprotocol/clientCapabilities":{}}"#
    );
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"list_projects","_meta":{meta},"arguments":{{{}}}}}}}"#,
        members.join(",")
    );
    let headers =
        [ACCEPT, ("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/call"), ("Mcp-Name", "list_projects")];
    post(port, "/mcp", &headers, &body)
}
