package router

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestKebabAndSnake(t *testing.T) {
	tests := []struct{ name, kebab, snake string }{
		{"", "", ""},
		{"Order", "order", "order"},
		{"OrderLine", "order-line", "order_line"},
		{"orderLine", "order-line", "order_line"},
		{"HTTPServer", "http-server", "http_server"},
		{"ServerHTTP", "server-http", "server_http"},
		{"ORDER", "order", "order"},
		{"ORDER_LINE", "order-line", "order_line"},
		{"order-line", "order-line", "order_line"},
		{"Order Line", "order-line", "order_line"},
		{"Order2Line", "order2-line", "order2_line"},
		{"V2API", "v2-api", "v2_api"},
		{"V2Order", "v2-order", "v2_order"},
		{"order2", "order2", "order2"},
		{"__order--line__", "order-line", "order_line"},
		{"com.acme.OrderLine", "com.acme.order-line", "com.acme.order_line"},
		{"acme._OrderLine", "acme.order-line", "acme.order_line"},
		{"ÄußereÖffnung", "äußere-öffnung", "äußere_öffnung"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.kebab, kebab(test.name))
			require.Equal(t, test.snake, snake(test.name))
		})
	}
}

func TestKebabAndSnakeAreTheirOwnResult(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-zA-Z0-9._ -]{0,20}`).Draw(t, "name")
		require.Equal(t, kebab(name), kebab(kebab(name)))
		require.Equal(t, kebab(name), kebab(snake(name)))
		require.Equal(t, snake(name), snake(kebab(name)))
	})
}

func TestPlural(t *testing.T) {
	tests := []struct{ name, want string }{
		{"", ""},
		{"Order", "Orders"},
		{"order_line", "order_lines"},
		{"Category", "Categories"},
		{"Day", "Days"},
		{"Survey", "Surveys"},
		{"Box", "Boxes"},
		{"Bus", "Buses"},
		{"Address", "Addresses"},
		{"Branch", "Branches"},
		{"Dish", "Dishes"},
		{"Waltz", "Waltzes"},
		{"Stage", "Stages"},
		{"ORDER", "ORDERS"},
		{"CATEGORY", "CATEGORIES"},
		{"y", "ys"},
		{"42", "42s"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { require.Equal(t, test.want, plural(test.name)) })
	}
}
