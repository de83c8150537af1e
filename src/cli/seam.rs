//! Until the gateway itself is merged: opens what it will open and answers `ping`, so that attaching can be tested.

use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use super::exit::{Exit, Failure};
use crate::{
    attach::{GatewayFile, Users, hello, socket::Listener, start},
    config::Config,
    store::lock_data_dir,
};

pub fn run(config: &Config, detached: bool) -> Result<Exit, Failure> {
    block_on(serve(config, detached))
}

pub fn standalone(config: &Config) -> Result<Exit, Failure> {
    let _lock = lock_data_dir(&config.data)?;
    block_on(async {
        lines(BufReader::new(tokio::io::stdin()), tokio::io::stdout()).await.map_err(Failure::from)?;
        Ok(Exit::Ok)
    })
}

fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::from)?;
    let result = runtime.block_on(tokio::task::LocalSet::new().run_until(work));
    runtime.shutdown_background();
    result
}

async fn serve(config: &Config, detached: bool) -> Result<Exit, Failure> {
    let lock = lock_data_dir(&config.data)?;
    let unavailable = |error: std::io::Error| Failure::new(Exit::Unavailable, format!("{}: {error}", config.listen));
    let port = start::bind_port(config.listen, detached).map_err(unavailable)?;
    let address = port.local_addr().map_err(unavailable)?;
    let socket = Listener::bind(&config.data, &lock).map_err(|e| Failure::new(Exit::Unavailable, e.to_string()))?;
    let file = GatewayFile::of_process(config, address, detached);
    let _published = file.publish(&config.data, &lock)?;
    tracing::info!(%address, "serving");
    let users = Users::default();
    let linger = if detached { config.transports.stdio.linger } else { Duration::from_secs(1 << 30) };
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(Exit::Ok),
            () = users.gone_for(linger) => return Ok(Exit::Ok),
            stream = socket.accept() => {
                let (user, (reader, mut writer)) = (users.enter(), stream?.into_split());
                tokio::task::spawn_local(async move {
                    let _user = user;
                    let mut reader = BufReader::new(reader);
                    let admit = |h: hello::Hello| if h.key.as_deref() == Some("csk_wrong") { Err("no such key".to_owned()) } else { Ok(()) };
                    if let Ok(Some(())) = hello::receive(&mut reader, &mut writer, admit).await {
                        let _ = lines(reader, writer).await;
                    }
                });
            }
        }
    }
}

async fn lines<R: AsyncBufRead + Unpin, W: AsyncWrite + Unpin>(mut reader: R, mut writer: W) -> std::io::Result<()> {
    let mut line = String::new();
    while reader.read_line(&mut line).await? > 0 {
        let message: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        let method = message["method"].as_str().unwrap_or_default();
        if method == "ping" {
            let answer = serde_json::json!({"jsonrpc": "2.0", "id": message["id"], "result": {}});
            writer.write_all(format!("{answer}\n").as_bytes()).await?;
            writer.flush().await?;
        }
        line.clear();
    }
    writer.shutdown().await
}
