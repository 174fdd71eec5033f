package stack

import "syscall"

// childAttributes has the kernel send a child a signal when this process dies, however it dies.
func childAttributes(account *syscall.Credential, onDeath syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Credential: account,
		Pdeathsig:  onDeath,
		Setpgid:    true, // Ctrl-C goes to this process, which ends the others in order
	}
}
