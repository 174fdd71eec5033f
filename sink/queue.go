package sink

import "slices"

// queue is a first-in, first-out queue that keeps its memory. Its head is looked at, worked on,
// and only then popped.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) len() int   { return len(q.items) - q.head }
func (q *queue[T]) at(i int) T { return q.items[q.head+i] }
func (q *queue[T]) push(v T) {
	if q.head > 0 && len(q.items) == cap(q.items) && q.head >= len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, v)
}

// filter removes the items that keep says no to, and leaves the others in their order.
func (q *queue[T]) filter(keep func(T) bool) {
	q.items = append(q.items[:q.head], slices.DeleteFunc(q.items[q.head:], func(v T) bool { return !keep(v) })...)
}

// pop removes the first n items.
func (q *queue[T]) pop(n int) {
	clear(q.items[q.head : q.head+n])
	q.head += n
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
}
