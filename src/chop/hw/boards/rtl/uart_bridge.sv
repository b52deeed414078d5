// Requests and replies over a UART, and the control of one inference at a time.
//
// An accepted request for an inference raises `go` for one cycle: the parts of the payload then go
// into the design. When `is_full` tells that the whole result is stored, the reply is sent, and
// `clear` frees the store. Bytes that arrive from the acceptance to the end of the reply are dropped.
// `led_error` is on from a refused request until the next accepted one.
`default_nettype none

module uart_bridge #(
    parameter int          CLOCKS     = 25,      // clock cycles per bit, 4 or more
    parameter int          IN_BYTES   = 1,       // payload of an inference, 1 to 65535
    parameter int          OUT_BYTES  = 1,       // payload of a result, 1 to 65535
    parameter int          TIMEOUT    = 500000,  // cycles to wait for a byte inside a request
    parameter logic [31:0] ID         = '0,      // identity of the design
    parameter bit          LED_ON     = 1'b1     // level that turns a LED on
) (
    input  wire logic        clk,
    input  wire logic        rst,
    input  wire logic        uart_rx,
    output      logic        uart_tx,
    output      logic [ 7:0] request,
    output      logic        request_valid,
    output      logic [15:0] request_index,
    output      logic        go,
    input  wire logic        is_full,
    output      logic        clear,
    output      logic        reply_taken,
    output      logic [15:0] reply_index,
    input  wire logic [ 7:0] reply,
    output      logic        led_busy,
    output      logic        led_error
);

  localparam logic [7:0] IDENTITY = 8'h80, RESULT = 8'h81;

  logic [7:0] sent, refused, number, number_q, status;
  logic byte_valid, sent_valid, sent_ready;
  logic accept, refuse, is_inference, is_sending, start;
  logic is_running_q, is_result_q, is_error_q, is_idle;
  logic [31:0] cycles_q;

  assign is_idle   = !is_running_q && !is_sending && !accept && !refuse;
  assign go        = accept && is_inference;
  assign start     = refuse || (accept && !is_inference) || (is_running_q && is_full);
  assign status    = refuse ? refused : is_running_q ? RESULT : IDENTITY;
  assign clear     = is_result_q && !is_sending && !is_running_q;
  assign led_busy  = LED_ON ? !is_idle : is_idle;
  assign led_error = LED_ON ? is_error_q : !is_error_q;

  always_ff @(posedge clk) begin
    if (is_running_q) cycles_q <= cycles_q + 32'd1;
    if (accept || refuse) begin
      is_error_q <= refuse;
      number_q   <= number;
    end
    if (go) begin
      is_running_q <= 1'b1;
      cycles_q     <= '0;
    end
    if (is_running_q && is_full) begin
      is_running_q <= 1'b0;
      is_result_q  <= 1'b1;
    end
    if (clear) is_result_q <= 1'b0;
    if (rst) begin
      is_running_q <= 1'b0;
      is_result_q  <= 1'b0;
      is_error_q   <= 1'b0;
      cycles_q     <= '0;
    end
  end

  uart_rx #(
      .CLOCKS(CLOCKS)
  ) u_uart_rx (
      .clk(clk),
      .rst(rst),
      .rx(uart_rx),
      .data(request),
      .data_valid(byte_valid)
  );

  frame_receiver #(
      .LENGTH (IN_BYTES),
      .TIMEOUT(TIMEOUT)
  ) u_receiver (
      .clk(clk),
      .rst(rst),
      .enable(is_idle),
      .data(request),
      .data_valid(byte_valid),
      .payload_valid(request_valid),
      .payload_index(request_index),
      .accept(accept),
      .refuse(refuse),
      .status(refused),
      .is_inference(is_inference),
      .number(number)
  );

  frame_sender #(
      .LENGTH(OUT_BYTES),
      .ID(ID)
  ) u_sender (
      .clk(clk),
      .rst(rst),
      .start(start),
      .status(status),
      .number(is_running_q ? number_q : number),
      .cycles(cycles_q),
      .is_busy(is_sending),
      .payload_taken(reply_taken),
      .payload_index(reply_index),
      .payload(reply),
      .data(sent),
      .data_valid(sent_valid),
      .data_ready(sent_ready)
  );

  uart_tx #(
      .CLOCKS(CLOCKS)
  ) u_uart_tx (
      .clk(clk),
      .rst(rst),
      .data(sent),
      .data_valid(sent_valid),
      .data_ready(sent_ready),
      .tx(uart_tx)
  );

endmodule

`default_nettype wire
