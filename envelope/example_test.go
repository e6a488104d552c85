package envelope_test

import (
	"fmt"

	"github.com/walrelay/walrelay/envelope"
)

func ExampleRead() {
	// With nats.go this is msg.Headers().Get.
	headers := map[string]string{
		"Nats-Msg-Id":           "0192f7a4-5f0e-7c3a-9d5e-2f1c8b7a6e5d",
		"Walrelay-Source":       "shop",
		"Walrelay-Position":     "1/0/16B3748/0",
		"Walrelay-Aggregate-Id": "42",
		"Walrelay-Event-Type":   "order.placed",
	}
	e, err := envelope.Read(func(name string) string { return headers[name] })
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(e.EventType, "of", e.AggregateID, "at", e.Position)
	// Output: order.placed of 42 at 1/0/16B3748/0
}

func ExampleMsgID() {
	fmt.Println(envelope.MsgID("shop", "walrelay.outbox", "0192f7a4-5f0e-7c3a-9d5e-2f1c8b7a6e5d", true))
	fmt.Println(envelope.MsgID("shop", "public.events", "17", false))
	fmt.Println(envelope.MsgID("shop", "public.events", "a b:c", false))
	// Output:
	// 0192f7a4-5f0e-7c3a-9d5e-2f1c8b7a6e5d
	// shop:public.events:17
	// shop:public.events:a%20b%3Ac
}

func ExampleParseMsgID() {
	p, err := envelope.ParseMsgID("shop:public.events:a%20b%3Ac")
	fmt.Printf("%q of table %s, source %s, %v\n", p.ID, p.Table, p.Source, err)
	// Output: "a b:c" of table public.events, source shop, <nil>
}

func ExampleTokens() {
	// The subjects of one event type under the default template.
	fmt.Println("outbox.shop.order." + envelope.Tokens("order.placed"))
	fmt.Println("outbox.shop.order." + envelope.Tokens("späte Lieferung"))
	// Output:
	// outbox.shop.order.order.placed
	// outbox.shop.order.sp%C3%A4te%20Lieferung
}

func ExampleToken() {
	fmt.Println("orders." + envelope.Token("eu.west") + ".>")
	// Output: orders.eu%2Ewest.>
}

func ExamplePosition_Compare() {
	a, _ := envelope.ParsePosition("1/0/9/0")
	b, _ := envelope.ParsePosition("1/0/10/0")
	fmt.Println(a.Compare(b))
	// Output: -1
}

func ExampleReserved() {
	fmt.Println(envelope.Reserved("nats-rollup"), envelope.Reserved("traceparent"))
	// Output: true false
}

func ExampleUnescape() {
	s, err := envelope.Unescape("50%25")
	fmt.Println(s, err)
	// Output: 50% <nil>
}
