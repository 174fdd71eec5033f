//go:build !linux

package stack

import "syscall"

// childAttributes leaves out the signal: only Linux tells a child that its parent died.
func childAttributes(account *syscall.Credential, _ syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: account, Setpgid: true}
}
