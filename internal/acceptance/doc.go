// Package acceptance holds tests of the whole product: the provider as a program of its own, driven by Terraform or
// OpenTofu as users drive it. Nothing runs inside the test process, so that the provider can be killed, its log read
// and its state upgraded.
package acceptance
