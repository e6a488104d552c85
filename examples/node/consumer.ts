// A consumer in TypeScript that makes each effect happen once. The receipt is
// taken by the SQL function walrelay.receive, in the transaction of the effect.
//
//   npm ci && npm run build
//   DATABASE_URL=... NATS_URL=... npm start
//
// The order of things is what counts: begin, receipt, effect, commit,
// acknowledge. docs/consumers.md tells what goes wrong in any other.

import { AckPolicy, jetstream, jetstreamManager, type JsMsg } from "@nats-io/jetstream";
import { connect, nanos } from "@nats-io/transport-node";
import pg from "pg";

const stream = process.env.STREAM ?? "SHOP";
const subject = process.env.SUBJECT ?? "outbox.shop.order.>";
// The name under which receipts are kept. A new name starts afresh.
const name = process.env.CONSUMER ?? "loyalty";

// Without an answer for this long, JetStream gives the message to another
// process; handlers that take longer say that they are still at work.
const ackWait = 30_000;
const slowest = 60_000; // between attempts

// What an event's body is.
interface Order {
  customer: string;
  cents: number;
}

// The effect: it adds, so that doing it twice would be wrong. All that it
// writes goes through db.
async function apply(db: pg.PoolClient, order: Order): Promise<void> {
  await db.query(
    `INSERT INTO loyalty AS l (customer, points) VALUES ($1, $2)
     ON CONFLICT (customer) DO UPDATE SET points = l.points + excluded.points`,
    [order.customer, Math.floor(order.cents / 100)],
  );
}

// Applies the event of this id in one transaction, and says whether it was new.
async function once(m: JsMsg, id: string): Promise<boolean> {
  const db = await pool.connect();
  let broken: Error | undefined;
  try {
    await db.query("BEGIN");
    const { rows } = await db.query<{ new: boolean }>("SELECT walrelay.receive($1, $2, $3, $4) AS new", [name, id, stream, m.seq]);
    const fresh = rows[0]!.new; // a function's result is one row
    if (fresh) await apply(db, m.json<Order>());
    await db.query("COMMIT");
    return fresh;
  } catch (err) {
    // Also where COMMIT itself failed, and nobody knows whether it took
    // effect: the message comes again, and the receipt knows.
    broken = await db.query("ROLLBACK").then(() => undefined, (e: Error) => e);
    throw err;
  } finally {
    db.release(broken); // a connection that cannot roll back is thrown away
  }
}

async function handle(m: JsMsg): Promise<void> {
  // The second header is there only where a replay forced a new Nats-Msg-Id.
  const id = m.headers?.get("Walrelay-Event-Id") || m.headers?.get("Nats-Msg-Id");
  if (!id || m.headers?.get("Walrelay-Event-Type") !== "order.placed") {
    m.ack(); // not for us
    return;
  }
  const working = setInterval(() => m.working(), ackWait / 3);
  try {
    const fresh = await once(m, id);
    m.ack(); // only now: the effect is committed
    if (!fresh) console.log(`event ${id}: was applied before`);
  } catch (err) {
    // Never without a delay, or a short outage makes a hot loop. An event
    // that can never be applied is tried for ever here, and seen in this
    // log; package inbox, in Go, counts attempts and keeps dead letters.
    const delay = Math.min(1000 * 2 ** Math.min(m.info.deliveryCount - 1, 10), slowest);
    const why = err instanceof Error ? err.message : err;
    console.error(`event ${id}, attempt ${m.info.deliveryCount}: ${why}; again in ${delay} ms`);
    m.nak(delay);
  } finally {
    clearInterval(working);
  }
}

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 4 });
pool.on("error", (err) => console.error(`database: ${err.message}`)); // of an idle connection; the pool replaces it

const nc = await connect({
  servers: process.env.NATS_URL ?? "127.0.0.1:4222",
  token: process.env.NATS_TOKEN,
  maxReconnectAttempts: -1,
});
const jsm = await jetstreamManager(nc);
// Twice is once, as long as the settings are the same.
await jsm.consumers.add(stream, {
  durable_name: name,
  filter_subject: subject,
  ack_policy: AckPolicy.Explicit, // anything else acknowledges before the commit
  ack_wait: nanos(ackWait),
  max_deliver: -1, // a finite number skips the message after its last try, and says nothing
});

const consumer = await jetstream(nc).consumers.get(stream, name);
const messages = await consumer.consume({ max_messages: 100 });
for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => messages.stop());
}
console.log(`consumer ${name}: started`);
// One at a time: the order of the stream, except for what is tried again.
for await (const m of messages) await handle(m);

// What was fetched and not handled comes again after the ack wait.
await nc.drain();
await pool.end();
console.log(`consumer ${name}: stopped`);
